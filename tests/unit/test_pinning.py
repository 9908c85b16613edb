"""Pinned sets as objects: who makes one, who adds to it, what is removed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from s3kv.core import requests as core
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.keys import set_key
from s3kv.core.pinning import (
    PARTS_MAX,
    TRIES,
    NamedSet,
    NameTaken,
    NoRoom,
    Pinned,
    Removed,
    add_to_set,
    archived_blocks,
    create_set,
    is_name,
    part_name,
    read_sets,
    remove_set,
)
from s3kv.core.pinset import encode_set, make_set
from s3kv.core.records import DEAD, make_records
from s3kv.core.snapshot import Snapshot
from s3kv.errors import Denied, Transient
from tests.fakes.index_store import NS, IndexStore

A, B, C = (BlockHash(hashlib.sha256(name).digest()) for name in (b"a", b"b", b"c"))


def put(store: IndexStore, part: str, *chunks: BlockHash) -> None:
    body = encode_set(make_set(NS, part, dict.fromkeys(chunks, 4)))
    store.carry_out(core.Put(set_key(NS, part), body))


def sets(store: IndexStore) -> dict[str, NamedSet]:
    return {found.name: found for found in store.run(read_sets(NS))}


def test_a_name_is_made_once() -> None:
    store = IndexStore()

    assert store.run(create_set(NS, "hot", {A: 4})) == Pinned(1)
    assert store.run(create_set(NS, "hot", {B: 4})) == NameTaken()
    assert sets(store)["hot"].blocks_of() == {A: 4}


def test_a_name_of_which_only_a_part_is_left_is_taken() -> None:
    store = IndexStore()
    put(store, part_name("hot", 3), A)

    assert store.run(create_set(NS, "hot", {B: 4})) == NameTaken()
    assert store.run(add_to_set(NS, "hot", {B: 4})) == Pinned(1)
    assert store.keys("/sets/") == [set_key(NS, part_name("hot", i)) for i in (3, 4)]


def test_what_is_added_lies_beside_what_was_there_and_counts_with_it() -> None:
    store = IndexStore()
    store.run(create_set(NS, "hot", {A: 4}))
    first = store.objects[set_key(NS, "hot")]
    store.now_s += 100

    assert store.run(add_to_set(NS, "hot", {A: 4, B: 0})) == Pinned(1)

    assert store.objects[set_key(NS, "hot")] == first
    found = sets(store)["hot"]
    assert found.blocks_of() == {A: 4, B: 0}
    assert [part.name for part in found.parts] == ["hot", "hot.plus-0002"]
    assert 100 <= found.age_s < 101


def test_adding_what_is_pinned_writes_nothing() -> None:
    store = IndexStore()
    store.run(add_to_set(NS, "hot", {A: 4, B: 4}))
    before = dict(store.objects)

    assert store.run(add_to_set(NS, "hot", {B: 1})) == Pinned(0)
    assert store.objects == before


def test_a_lost_reply_is_no_other_persons_set() -> None:
    store = IndexStore()
    lost = iter([True])

    def lose(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create) and next(lost, False):
            store.carry_out(request)
            return core.Lost("no reply")
        return None

    assert store.run(create_set(NS, "hot", {A: 4}), lose) == Pinned(1)
    assert len(store.keys("/sets/")) == 1


def in_between(act: Callable[[], object], times: int) -> Callable[[core.Single], None]:
    left = iter(range(times))

    def fault(request: core.Single) -> None:
        if isinstance(request, core.Create) and next(left, None) is not None:
            act()

    return fault


def test_who_is_overtaken_takes_the_next_part() -> None:
    store = IndexStore()

    def overtake() -> None:
        store.run(add_to_set(NS, "hot", {B: 4, C: 4}))

    assert store.run(add_to_set(NS, "hot", {A: 4, B: 4}), in_between(overtake, 1)) == Pinned(1)
    assert sets(store)["hot"].blocks_of().keys() == {A, B, C}


def test_who_is_overtaken_again_and_again_gives_up() -> None:
    store = IndexStore()
    count = 0

    def overtake() -> None:
        nonlocal count
        count += 1
        other = BlockHash(hashlib.sha256(b"%d" % count).digest())
        store.run(add_to_set(NS, "hot", {other: 1}))

    with pytest.raises(Transient, match=f"{TRIES} times"):
        store.run(add_to_set(NS, "hot", {A: 4}), in_between(overtake, 1_000))
    assert A not in sets(store)["hot"].blocks_of()


def test_a_set_has_room_for_so_many_parts() -> None:
    store = IndexStore()
    put(store, part_name("hot", PARTS_MAX), A)

    assert store.run(add_to_set(NS, "hot", {B: 4})) == NoRoom()
    assert store.run(add_to_set(NS, "hot", {A: 4})) == Pinned(0)


def test_a_set_is_removed_with_its_parts_and_nothing_beside_it() -> None:
    store = IndexStore()
    for name in ("hot", "hot.plus-0002", "hot.plus-2", "hotter", "hot.old", "hot.plus-0001"):
        put(store, name, A)
    foreign = f"{NS}/sets/Hot"
    store.carry_out(core.Put(foreign, b"mine"))

    assert store.run(remove_set(NS, "hot")) == Removed(2, ())

    assert set(sets(store)) == {"hot.plus-2", "hotter", "hot.old", "hot.plus-0001"}
    assert foreign in store.objects
    assert store.run(remove_set(NS, "hot")) == Removed(0, ())


def test_a_part_that_is_written_anew_while_it_is_removed_stays() -> None:
    store = IndexStore()
    put(store, "hot", A)

    def rewrite(request: core.Single) -> None:
        if isinstance(request, core.DeleteListed):
            put(store, "hot", B)

    assert store.run(remove_set(NS, "hot"), rewrite) == Removed(0, (set_key(NS, "hot"),))
    assert sets(store)["hot"].blocks_of() == {B: 4}


def test_a_damaged_part_is_told_and_hides_no_other() -> None:
    store = IndexStore()
    store.run(create_set(NS, "hot", {A: 4}))
    store.run(create_set(NS, "other", {C: 4}))
    store.run(add_to_set(NS, "hot", {B: 4}))
    store.carry_out(core.Put(set_key(NS, "hot"), b"nonsense"))

    found = sets(store)

    assert found["hot"].blocks_of() == {B: 4}
    assert found["hot"].problem.startswith("hot: ")
    assert found["other"].problem == ""
    assert store.run(remove_set(NS, "hot")) == Removed(2, ())


def test_a_part_of_another_set_under_our_name_is_told() -> None:
    store = IndexStore()
    body = encode_set(make_set(NS, "other", {A: 4}))
    store.carry_out(core.Put(set_key(NS, "hot"), body))

    assert "other" in sets(store)["hot"].problem


def test_what_is_refused_is_raised() -> None:
    with pytest.raises(Denied):
        IndexStore().run(
            create_set(NS, "hot", {A: 4}),
            lambda request: core.Refused("403") if isinstance(request, core.Create) else None,
        )


@pytest.mark.parametrize(
    ("name", "is_possible"),
    [
        ("hot", True),
        ("a" * 90, True),
        ("a" * 91, False),
        ("", False),
        ("Hot", False),
        ("-hot", False),
        ("hot/cold", False),
        ("hot.plus-0002", False),
        ("hot.plus-2", True),
    ],
)
def test_a_name_leaves_room_for_parts_and_is_none(name: str, is_possible: bool) -> None:
    assert is_name(name) == is_possible


def test_archived_is_what_is_live_with_the_blocks_that_it_has() -> None:
    fps = fingerprints([A, B, C])
    flags = np.array([0, DEAD], np.uint16)
    snapshot = Snapshot().absorb(make_records(fps[:2], 1_000, np.array([4, 0], np.uint16), flags))

    known, blocks = archived_blocks(snapshot, fps)

    assert (known.tolist(), blocks.tolist()) == ([True, False, False], [4, 0, 0])
    known, blocks = archived_blocks(Snapshot(), fps)
    assert not known.any()
    assert not blocks.any()
