"""Loads: what arrives is right, and what does not arrive is named.

What must hold whatever happens: one outcome, the slots all back, and nothing written into a block
after the outcome is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3kv.bucket.faults import Fail, Fault, Flip, Hold, Truncate, Vanish
from s3kv.bucket.memory import MemoryStore
from s3kv.errors import Closed, Corrupt, Denied, Mismatch, S3KVError, Throttled, Transient
from s3kv.runtime import downloader as module
from s3kv.runtime.downloader import Downloader, LoadFault, LoadOutcome, ShardPart, fault_of
from tests.fakes.chunks import CHUNK_BLOCKS, GEOMETRY, identity_of, key_of
from tests.fakes.load_bench import (
    BLOCK_BYTES,
    CHUNKS,
    HOUR_S,
    Bench,
    block_bytes,
    open_bench,
    parts_of,
    shard_of,
)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


# ------------------------------------------------------------------ what arrives
async def test_a_load_fills_every_block_with_its_own_bytes(bench: Bench) -> None:
    outcome = await bench.load(parts_of())
    assert outcome.arrived_count == CHUNKS
    assert outcome.faults == {}
    assert outcome.received_bytes == CHUNKS * GEOMETRY.shard_bytes(CHUNK_BLOCKS)
    assert bench.arrived(parts_of()) == [True] * CHUNKS
    await bench.all_back()


async def test_a_load_without_parts_ends_at_once(bench: Bench) -> None:
    assert await bench.load([]) == LoadOutcome(0, 0)


async def test_a_part_of_a_chunk_brings_only_its_blocks(bench: Bench) -> None:
    parts = [ShardPart(identity_of(0), 2, (71,))]
    outcome = await bench.load(parts)
    assert outcome.arrived_count == 1
    assert bench.blocks.written == {71: block_bytes(0, 2)}


async def test_a_far_part_is_read_by_two_ranges_that_skip_what_lies_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SKIP_AT_BYTES", 2 * BLOCK_BYTES - 1)
    near, far = ShardPart(identity_of(0), 1, (71,)), ShardPart(identity_of(1), 2, (72, 73))
    outcome = await bench.load([near, far])
    assert outcome.arrived_count == 2
    assert bench.blocks.written[72] == block_bytes(1, 2)
    assert bench.blocks.written[73] == block_bytes(1, 3)
    assert [operation for operation, _ in bench.store.calls] == ["get_into"] * 3
    skipped = 2 * BLOCK_BYTES
    unread = BLOCK_BYTES * 2  # of the near shard, behind its part
    assert outcome.received_bytes == 2 * GEOMETRY.shard_bytes(CHUNK_BLOCKS) - skipped - unread


async def test_no_more_slots_are_held_than_the_pool_has(bench: Bench) -> None:
    """More parts than slots and gates: they take turns."""
    store = MemoryStore()
    for index in range(20):
        store.write(key_of(identity_of(index)), shard_of(index))
    with ThreadPoolExecutor(1) as hashing:
        narrow = Downloader(store, bench.slots, GEOMETRY, hashing, concurrency=50)
        outcome = await narrow.load(parts_of(20), bench.blocks, HOUR_S)
        assert outcome.arrived_count == 20
        await narrow.close()


# ------------------------------------------------------------------ what does not
FAULTS: dict[str, tuple[Fault, LoadFault]] = {
    "not there": (Vanish(), LoadFault.MISSING),
    "nothing of it": (Truncate(0), LoadFault.CORRUPT),
    "half of it": (Truncate(GEOMETRY.header_bytes + 50), LoadFault.CORRUPT),
    "one byte short": (Truncate(GEOMETRY.shard_bytes(CHUNK_BLOCKS) - 1), LoadFault.CORRUPT),
    "data byte wrong": (Flip(GEOMETRY.header_bytes + 5), LoadFault.CORRUPT),
    "last byte wrong": (Flip(GEOMETRY.shard_bytes(CHUNK_BLOCKS) - 1), LoadFault.CORRUPT),
    "header byte wrong": (Flip(20), LoadFault.CORRUPT),
    "padding byte wrong": (Flip(GEOMETRY.header_bytes - 1), LoadFault.CORRUPT),
    "store down": (Fail(Transient("down")), LoadFault.UNAVAILABLE),
    "slow down": (Fail(Throttled("slow down")), LoadFault.THROTTLED),
    "forbidden": (Fail(Denied("no")), LoadFault.DENIED),
    "store closed": (Fail(Closed("closed")), LoadFault.UNAVAILABLE),
    "answer nonsense": (Fail(Corrupt("nonsense")), LoadFault.CORRUPT),
}


@pytest.mark.parametrize("failing", [0, 2, CHUNKS - 1])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_failing_part_ends_the_load_there_and_is_named(
    bench: Bench, name: str, failing: int
) -> None:
    fault, word = FAULTS[name]
    parts = parts_of()
    bench.store.inject(fault, "get_into", keys=key_of(parts[failing].identity), times=None)
    outcome = await bench.load(parts)
    assert outcome.arrived_count == failing
    assert outcome.faults == {failing: word}
    arrived = bench.arrived(parts)
    assert arrived[:failing] == [True] * failing
    assert not arrived[failing]
    await bench.all_back()


async def test_when_every_part_fails_nothing_is_written(bench: Bench) -> None:
    bench.store.inject(Fail(Transient("down")), "get_into", times=None)
    outcome = await bench.load(parts_of())
    assert outcome.arrived_count == 0
    assert outcome.faults[0] is LoadFault.UNAVAILABLE
    assert bench.blocks.written == {}


async def test_every_part_known_to_be_bad_by_then_is_named(bench: Bench) -> None:
    parts = parts_of()
    hold = Hold()
    bench.store.inject(hold, "get_into", keys=key_of(parts[0].identity))
    bench.store.inject(Vanish(), "get_into", times=None)
    loading = asyncio.ensure_future(bench.load(parts))
    await hold.entered.wait()
    while len(bench.store.calls) < len(parts):  # noqa: ASYNC110  the others go on meanwhile
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    hold.released.set()
    outcome = await loading
    assert outcome.arrived_count == 1
    assert outcome.faults == dict.fromkeys(range(1, len(parts)), LoadFault.MISSING)
    await bench.all_back()


def another_size(change: int) -> bytes:
    body = shard_of(0)
    return body + bytes(change) if change > 0 else body[:change]


OBJECTS: dict[str, tuple[bytes, LoadFault]] = {
    "empty": (b"", LoadFault.CORRUPT),
    "longer by a byte": (another_size(1), LoadFault.CORRUPT),
    "longer by a block": (another_size(BLOCK_BYTES), LoadFault.CORRUPT),
    "shorter by a byte": (another_size(-1), LoadFault.CORRUPT),
    "of another chunk": (shard_of(1), LoadFault.OTHER_IDENTITY),
    "of a shorter tail": (shard_of(0, 2), LoadFault.CORRUPT),
}


@pytest.mark.parametrize("name", OBJECTS)
async def test_an_object_that_is_not_this_shard_is_lost(bench: Bench, name: str) -> None:
    body, word = OBJECTS[name]
    bench.memory.write(key_of(identity_of(0)), body)
    outcome = await bench.load(parts_of(1))
    assert outcome == LoadOutcome(0, outcome.received_bytes, {0: word})
    assert word.lost
    assert bench.blocks.written == {}


async def test_a_longer_object_is_refused_also_when_only_its_beginning_is_read(
    bench: Bench,
) -> None:
    bench.memory.write(key_of(identity_of(0)), another_size(1))
    outcome = await bench.load([ShardPart(identity_of(0), 0, (71,))])
    assert outcome.faults == {0: LoadFault.CORRUPT}


@pytest.mark.parametrize(
    ("error", "fault", "lost"),
    [
        (Corrupt(""), LoadFault.CORRUPT, True),
        (Mismatch(""), LoadFault.OTHER_IDENTITY, True),
        (Transient(""), LoadFault.UNAVAILABLE, False),
        (Throttled(""), LoadFault.THROTTLED, False),
        (Denied(""), LoadFault.DENIED, False),
        (Closed(""), LoadFault.UNAVAILABLE, False),
    ],
)
def test_only_what_proves_the_copy_bad_counts_as_lost(
    error: S3KVError, fault: LoadFault, lost: bool
) -> None:
    assert fault_of(error) is fault
    assert fault.lost is lost


async def test_a_copy_that_fails_ends_the_load_there(bench: Bench) -> None:
    bench.blocks.refuses = True
    outcome = await bench.load(parts_of(2))
    assert outcome.arrived_count == 0
    assert outcome.faults[0] is LoadFault.COPY_FAILED
    assert not outcome.faults[0].lost


@pytest.mark.parametrize("what", ["copier", "pool"])
async def test_a_closed_component_raises_and_keeps_no_slot(bench: Bench, what: str) -> None:
    if what == "copier":
        bench.blocks.closed = True
    else:
        bench.slots.error = Closed("slot pool is closed")
    with pytest.raises(Closed):
        await bench.load(parts_of(2))
    await bench.all_back()
