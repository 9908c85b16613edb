"""Which chunks are pinned, as a sequencer or sweeper knows it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.ids import BlockHash
from s3kv.core.pins import Pins
from s3kv.core.pinset import encode_set, make_set
from s3kv.errors import Transient
from tests.fakes.index_store import NS, IndexStore


def hash_of(fp: int) -> BlockHash:
    return BlockHash(fp.to_bytes(8, "big") + bytes(24))


def put_set(store: IndexStore, name: str, *fps: int) -> None:
    blocks: Mapping[BlockHash, int] = {hash_of(fp): 16 for fp in fps}
    store.carry_out(core.Put(keys.set_key(NS, name), encode_set(make_set(NS, name, blocks))))


def refreshed(store: IndexStore, pins: Pins) -> list[int]:
    store.run(pins.refresh())
    return [int(fp) for fp in pins.fps]


def test_the_sets_of_a_namespace_pin_their_chunks_together() -> None:
    store, pins = IndexStore(), Pins(NS)
    assert not pins.complete, "nobody has looked yet"
    put_set(store, "a", 3, 1)
    put_set(store, "b", 2, 3)
    assert refreshed(store, pins) == [1, 2, 3]
    assert pins.complete


def test_only_what_has_changed_is_read_again() -> None:
    store, pins = IndexStore(), Pins(NS)
    put_set(store, "a", 1)
    put_set(store, "b", 2)
    refreshed(store, pins)
    before = store.count(core.Get)
    put_set(store, "b", 4)
    store.run(pins.refresh())
    assert pins.fps.tolist() == [1, 4]
    assert store.count(core.Get) == before + 1


def test_where_nothing_has_changed_nothing_is_computed() -> None:
    store, pins = IndexStore(), Pins(NS)
    put_set(store, "a", 3, 1)
    refreshed(store, pins)
    before = pins.fps
    store.run(pins.refresh())
    assert pins.fps is before


def test_an_unpinned_set_pins_nothing_any_more() -> None:
    store, pins = IndexStore(), Pins(NS)
    put_set(store, "a", 1)
    refreshed(store, pins)
    del store.objects[keys.set_key(NS, "a")]
    assert refreshed(store, pins) == []
    assert pins.complete


def test_a_set_that_is_unpinned_while_it_is_read_is_no_problem() -> None:
    store, pins = IndexStore(), Pins(NS)
    put_set(store, "a", 1)

    def gone(request: core.Single) -> core.Value | None:
        return core.Absent() if isinstance(request, core.Get) else None

    store.run(pins.refresh(), gone)
    assert (pins.complete, pins.fps.tolist()) == (True, [])


@pytest.mark.parametrize("body", [b"", b"damaged", encode_set(make_set(NS, "other", {}))])
def test_a_set_that_cannot_be_read_is_named_and_nothing_is_certain(body: bytes) -> None:
    store, pins = IndexStore(), Pins(NS)
    put_set(store, "a", 1)
    store.carry_out(core.Put(keys.set_key(NS, "docs"), body))
    refreshed(store, pins)
    assert not pins.complete
    assert "docs" in pins.problem
    del store.objects[keys.set_key(NS, "docs")]
    refreshed(store, pins)
    assert (pins.complete, pins.problem) == (True, "")


def test_a_look_that_fails_leaves_nothing_certain() -> None:
    store, pins = IndexStore(), Pins(NS)
    refreshed(store, pins)
    assert pins.complete
    with pytest.raises(Transient):
        store.run(pins.refresh(), lambda request: core.Lost("network"))
    assert not pins.complete


def test_foreign_names_beside_the_sets_are_not_read() -> None:
    store, pins = IndexStore(), Pins(NS)
    store.carry_out(core.Put(f"{keys.sets_prefix(NS)}UPPER", b"x"))
    assert refreshed(store, pins) == []
    assert pins.complete
    assert store.count(core.Get) == 0
