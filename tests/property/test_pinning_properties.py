"""No order of requests, no lost reply and no death of a process unpins what somebody pinned."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from s3kv.core import requests as core
from s3kv.core.ids import BlockHash
from s3kv.core.pinning import (
    PARTS_MAX,
    NameTaken,
    Pinned,
    Pinning,
    add_to_set,
    create_set,
    is_name,
    part_name,
    read_sets,
    split_name,
)
from s3kv.core.pins import Pins
from s3kv.errors import Transient
from tests.fakes.index_store import NS, IndexStore

CHUNKS = [BlockHash(hashlib.sha256(bytes([i])).digest()) for i in range(8)]
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)


@dataclass
class Person:
    """Somebody who pins chunks, one request after the other."""

    chunks: frozenset[BlockHash]
    steps: core.Steps[Pinning]
    outcome: Pinning | Transient | None = None
    has_died: bool = False
    reply: core.Reply | None = None

    @property
    def is_busy(self) -> bool:
        return self.outcome is None and not self.has_died

    def go_on(self, store: IndexStore, reply_is_lost: bool) -> None:
        """One request and its answer."""
        try:
            request = next(self.steps) if self.reply is None else self.steps.send(self.reply)
            reply = store.answer(request)
            value = core.Lost("reply lost") if reply_is_lost else reply.value
            self.reply = core.Reply(value, reply.sent_s, reply.received_s)
        except StopIteration as end:
            self.outcome = end.value
        except Transient as error:
            self.outcome = error


def pinned_now(store: IndexStore) -> set[BlockHash]:
    """As the commands see it; sequencers and sweepers must see the same."""
    sets = store.run(read_sets(NS))
    found = {chunk for each in sets for chunk in each.blocks_of()}
    pins = Pins(NS)
    store.run(pins.refresh())
    assert pins.complete
    assert set(pins.fps.tolist()) == {int.from_bytes(chunk[:8], "big") for chunk in found}
    return found


@st.composite
def people(draw: st.DrawFn) -> list[Person]:
    made = []
    for _ in range(draw(st.integers(2, 4))):
        chunks = draw(st.frozensets(st.sampled_from(CHUNKS), min_size=1))
        begin = add_to_set if draw(st.booleans()) else create_set
        made.append(Person(chunks, begin(NS, "hot", dict.fromkeys(chunks, 1))))
    return made


@given(people(), st.data())
def test_what_is_pinned_once_stays_pinned_whoever_else_pins(
    everybody: list[Person], data: st.DataObject
) -> None:
    store, before = IndexStore(), set[BlockHash]()

    while busy := [person for person in everybody if person.is_busy]:
        person = data.draw(st.sampled_from(busy))
        match data.draw(st.sampled_from(["goes on", "goes on", "goes on", "loses", "dies"])):
            case "dies":
                person.steps.close()
                person.has_died = True
            case what:
                person.go_on(store, what == "loses")
        now = pinned_now(store)
        assert now >= before, "something was unpinned, if only for a moment"
        before = now
        for one in everybody:
            if isinstance(one.outcome, Pinned):
                assert now >= one.chunks

    made = [person for person in everybody if not person.has_died]
    assert all(isinstance(one.outcome, Pinned | NameTaken | Transient) for one in made)


@given(NAMES, st.integers(1, PARTS_MAX))
def test_parts_of_a_set_are_told_from_sets(name: str, index: int) -> None:
    assert split_name(part_name(name, index)) == (name, index)
    assert is_name(name) == (split_name(name)[1] == 1)
    if index > 1:
        assert not is_name(part_name(name, index))


@given(st.frozensets(st.sampled_from(CHUNKS), min_size=1), st.integers(0, 65_535))
def test_chunks_and_their_blocks_come_back(chunks: frozenset[BlockHash], blocks: int) -> None:
    store = IndexStore()
    given_blocks = dict.fromkeys(chunks, blocks)

    store.run(create_set(NS, "hot", given_blocks))

    (found,) = store.run(read_sets(NS))
    assert found.blocks_of() == given_blocks
    assert (found.name, found.problem, len(found.parts)) == ("hot", "", 1)
