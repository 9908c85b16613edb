"""Loads end in time, when cancelled and when closed: slots back, no block written afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from s3kv.bucket.faults import Hold, Vanish
from s3kv.bucket.memory import MemoryStore
from s3kv.runtime.downloader import Downloader, LoadFault, LoadOutcome
from tests.fakes.chunks import CHUNK_BLOCKS, GEOMETRY, identity_of, key_of
from tests.fakes.load_bench import CHUNKS, HOUR_S, SLOTS, Bench, open_bench, parts_of, shard_of


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


# ------------------------------------------------------------------ time and cancellation
async def test_a_get_that_never_answers_ends_the_load_at_its_deadline(bench: Bench) -> None:
    hold = Hold()
    parts = parts_of()
    bench.store.inject(hold, "get_into", keys=key_of(parts[2].identity), times=None)
    outcome = await bench.load(parts, deadline_s=0.2)
    assert hold.entered.is_set()
    assert outcome.arrived_count <= 2
    assert outcome.faults == {outcome.arrived_count: LoadFault.DEADLINE}
    await bench.all_back()


class Unhurried(MemoryStore):
    """GETs that cannot be cancelled: the slot is in use until the test lets go of it."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.waiting = 0

    async def get_into(self, key: str, start: int, buffer: memoryview, *, timeout_s: float) -> Any:
        self.waiting += 1
        cancelled = False
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                cancelled = True
        self.waiting -= 1
        received = await super().get_into(key, start, buffer, timeout_s=HOUR_S)
        if cancelled:
            raise asyncio.CancelledError
        return received


async def test_bytes_after_the_deadline_reach_no_block_and_their_slot_comes_back(
    bench: Bench,
) -> None:
    store = Unhurried()
    store.write(key_of(identity_of(0)), shard_of(0))
    with ThreadPoolExecutor(1) as hashing:
        late = Downloader(store, bench.slots, GEOMETRY, hashing, concurrency=2)
        outcome = await late.load(parts_of(1), bench.blocks, 0.05)
        assert outcome == LoadOutcome(0, 0, {0: LoadFault.DEADLINE})
        assert store.waiting == 1
        assert bench.slots.free_count == SLOTS - 1, "the slot is still being written"
        bench.blocks.frozen = True
        store.released.set()
        await bench.all_back()
        assert bench.blocks.written == {}
        await late.close()


async def test_a_load_waits_for_a_copy_that_is_under_way_at_the_deadline(bench: Bench) -> None:
    """Its blocks are being written; reporting earlier would hand them to somebody else."""
    bench.blocks.held.clear()
    loading = asyncio.create_task(bench.load(parts_of(1), deadline_s=1.0))
    await asyncio.get_running_loop().run_in_executor(None, bench.blocks.copying.wait)
    done, _ = await asyncio.wait({loading}, timeout=1.2)
    assert not done, "reported while blocks were being written"
    assert bench.slots.free_count == SLOTS - 1
    bench.blocks.held.set()
    outcome = await loading
    assert outcome == LoadOutcome(0, outcome.received_bytes, {0: LoadFault.DEADLINE})
    await bench.all_back()


async def test_a_copy_that_has_not_begun_at_the_deadline_is_never_made(bench: Bench) -> None:
    """Two copies: the first is under way at the deadline, the second waits behind it."""
    bench.blocks.held.clear()
    loading = asyncio.create_task(bench.load(parts_of(2), deadline_s=1.0))
    await asyncio.get_running_loop().run_in_executor(None, bench.blocks.copying.wait)
    await asyncio.wait({loading}, timeout=1.2)
    bench.blocks.held.set()
    outcome = await loading
    assert outcome.arrived_count == 0
    assert len(bench.blocks.written) == CHUNK_BLOCKS, "only the copy that was under way"
    assert bench.blocks.reports.count(True) == 1


async def test_no_slot_in_time_ends_the_load(bench: Bench) -> None:
    taken = [await bench.slots.lend_for_load(HOUR_S) for _ in range(SLOTS)]
    outcome = await bench.load(parts_of(2), deadline_s=0.05)
    assert outcome.arrived_count == 0
    assert outcome.faults[0] in (LoadFault.NO_SLOT, LoadFault.DEADLINE)
    for slot in taken:
        assert slot is not None
        bench.slots.give_back(slot)


async def test_a_cancelled_load_gives_everything_back(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "get_into", times=None)
    loading = asyncio.create_task(bench.load(parts_of()))
    await hold.entered.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    bench.blocks.frozen = True
    await bench.all_back()
    assert bench.blocks.written == {}


async def test_a_cancelled_load_waits_for_a_copy_that_is_under_way(bench: Bench) -> None:
    bench.blocks.held.clear()
    loading = asyncio.create_task(bench.load(parts_of(1)))
    await asyncio.get_running_loop().run_in_executor(None, bench.blocks.copying.wait)
    loading.cancel()
    done, _ = await asyncio.wait({loading}, timeout=0.2)
    assert not done, "ended while blocks were being written"
    bench.blocks.held.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await bench.all_back()


async def test_closing_ends_loads_as_failed_never_as_complete(bench: Bench) -> None:
    """A reset closes the old archive's downloader under a load that the engine still waits for."""
    hold = Hold()
    parts = parts_of()
    bench.store.inject(hold, "get_into", keys=key_of(parts[1].identity), times=None)
    loading = asyncio.create_task(bench.load(parts))
    await hold.entered.wait()
    await bench.downloader.close()
    outcome = await loading
    assert outcome.arrived_count <= 1
    assert outcome.faults == {outcome.arrived_count: LoadFault.GIVEN_UP}
    assert bench.slots.free_count == SLOTS


async def test_two_loads_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    parts = parts_of()
    bench.store.inject(Vanish(), "get_into", keys=key_of(parts[0].identity), times=None)
    broken = bench.downloader.load(parts[:2], bench.blocks, HOUR_S)
    whole = bench.downloader.load(parts[2:], bench.blocks, HOUR_S)
    first, second = await asyncio.gather(broken, whole)
    assert first.arrived_count == 0
    assert second.arrived_count == CHUNKS - 2
    assert bench.arrived(parts)[2:] == [True] * (CHUNKS - 2)
