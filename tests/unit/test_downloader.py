"""Loads: every way to fail, on a store in memory and a cache that is a dictionary.

What must hold whatever happens: one outcome, the slots all back, and nothing written into a block
after the outcome is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from s3kv.bucket.faults import Fail, Fault, Faulty, Flip, Hold, Truncate, Vanish
from s3kv.bucket.memory import MemoryStore
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, NamespaceId
from s3kv.core.keys import shard_key
from s3kv.core.shard import ShardIdentity, seal
from s3kv.errors import Closed, Corrupt, Denied, Mismatch, S3KVError, Throttled, Transient
from s3kv.runtime import downloader as module
from s3kv.runtime.downloader import Downloader, LoadFault, LoadOutcome, ShardPart, fault_of
from s3kv.runtime.ports import LentSlot

NS = NamespaceId("0123456789abcdef0123456789abcdef")
CHUNK_BLOCKS = 4
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 24),), CHUNK_BLOCKS)
BLOCK_BYTES = GEOMETRY.block_bytes
HOUR_S = 3600.0


def identity_of(chunk_index: int, block_count: int = CHUNK_BLOCKS) -> ShardIdentity:
    names = tuple(
        BlockHash(hashlib.sha256(b"%d.%d" % (chunk_index, i)).digest()) for i in range(block_count)
    )
    return ShardIdentity(NS, names[-1], ZERO_HASH, names, 0, 1)


def key_of(identity: ShardIdentity) -> str:
    return shard_key(NS, identity.chunk_hash, 0, 1)


def block_bytes(chunk_index: int, block_index: int) -> bytes:
    """What lies in a block, different for each."""
    return bytes((chunk_index * 40 + block_index * 7 + i) % 256 for i in range(BLOCK_BYTES))


def shard_of(chunk_index: int, block_count: int = CHUNK_BLOCKS) -> bytes:
    slot = memoryview(bytearray(GEOMETRY.slot_bytes))
    for i in range(block_count):
        at = GEOMETRY.header_bytes + i * BLOCK_BYTES
        slot[at : at + BLOCK_BYTES] = block_bytes(chunk_index, i)
    return bytes(seal(slot, GEOMETRY, identity_of(chunk_index, block_count), bytes(16)))


@dataclass(eq=False)
class FakeSlot:
    memory: memoryview


class FakeSlots:
    """A pool of the real protocol; a slot given back is scribbled over at once."""

    def __init__(self, count: int) -> None:
        self._free = [self._new() for _ in range(count)]
        self._lent: list[LentSlot] = []
        self._returned = asyncio.Event()
        self.error: S3KVError | None = None

    @staticmethod
    def _new() -> LentSlot:
        return FakeSlot(memoryview(bytearray(GEOMETRY.slot_bytes)))

    @property
    def free_count(self) -> int:
        return len(self._free)

    async def lend_for_load(self, timeout_s: float) -> LentSlot | None:
        if self.error is not None:
            raise self.error
        try:
            async with asyncio.timeout(timeout_s):
                while not self._free:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError:
            return None
        slot = self._free.pop()
        self._lent.append(slot)
        return slot

    def give_back(self, slot: LentSlot) -> None:
        assert slot in self._lent, "given back twice"
        self._lent.remove(slot)
        slot.memory[:] = b"\xee" * len(slot.memory)
        self._free.append(slot)
        self._returned.set()


@dataclass
class Blocks:
    """The device's blocks and the thread that copies into them."""

    held: threading.Event = field(default_factory=threading.Event)
    copying: threading.Event = field(default_factory=threading.Event)
    refuses: bool = False
    closed: bool = False
    written: dict[int, bytes] = field(default_factory=dict)
    reports: list[bool] = field(default_factory=list)
    frozen: bool = False
    late_count: int = 0

    def __post_init__(self) -> None:
        self.held.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fake-copy")

    def deliver(
        self,
        block_ids: Sequence[int],
        data: memoryview,
        still_wanted: Callable[[], bool],
        on_done: Callable[[bool], None],
    ) -> None:
        if self.closed:
            raise Closed("copier is closed")
        self._thread.submit(self._copy, tuple(block_ids), data, still_wanted, on_done)

    def _copy(
        self,
        block_ids: Sequence[int],
        data: memoryview,
        still_wanted: Callable[[], bool],
        on_done: Callable[[bool], None],
    ) -> None:
        wanted = still_wanted() and not self.refuses
        self.copying.set()
        self.held.wait()
        if wanted:
            self.late_count += self.frozen
            for at, block_id in enumerate(block_ids):
                self.written[block_id] = bytes(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])
        self.reports.append(wanted)
        on_done(wanted)

    def close(self) -> None:
        self.held.set()
        self._thread.shutdown()


@dataclass
class Bench:
    store: Faulty
    memory: MemoryStore
    slots: FakeSlots
    blocks: Blocks
    downloader: Downloader

    async def load(self, parts: Sequence[ShardPart], deadline_s: float = HOUR_S) -> LoadOutcome:
        """One load; nothing may be written into its blocks afterwards."""
        outcome = await self.downloader.load(parts, self.blocks, deadline_s)
        self.blocks.frozen = True
        return outcome

    async def all_back(self) -> None:
        """Every slot comes back without anybody's help."""
        async with asyncio.timeout(20):
            while self.slots.free_count < SLOTS:  # noqa: ASYNC110  plain slots, no events
                await asyncio.sleep(0)

    def arrived(self, parts: Sequence[ShardPart]) -> list[bool]:
        """Which parts lie in their blocks, byte for byte."""
        return [
            all(
                self.blocks.written.get(block_id) == block_bytes(index, part.first_block + i)
                for i, block_id in enumerate(part.block_ids)
            )
            for index, part in enumerate(parts)
        ]


SLOTS = 3
CHUNKS = 5


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    memory = MemoryStore()
    for index in range(CHUNKS):
        memory.write(key_of(identity_of(index)), shard_of(index))
    store, slots, blocks = Faulty(memory), FakeSlots(SLOTS), Blocks()
    with ThreadPoolExecutor(1) as hashing:
        downloader = Downloader(store, slots, GEOMETRY, hashing, concurrency=2)
        made = Bench(store, memory, slots, blocks, downloader)
        yield made
        store.heal()
        blocks.held.set()
        await downloader.close()
        blocks.close()
    assert slots.free_count == SLOTS
    assert blocks.late_count == 0, "written after the outcome"


def parts_of(count: int = CHUNKS) -> list[ShardPart]:
    """Whole chunks 0..count, chunk i into blocks 10i+1..10i+4."""
    return [
        ShardPart(identity_of(i), 0, tuple(range(10 * i + 1, 10 * i + 1 + CHUNK_BLOCKS)))
        for i in range(count)
    ]


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
