"""Loads from a store in memory into a cache that is a dictionary."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.core.shard import seal
from s3kv.errors import Closed, S3KVError
from s3kv.runtime.downloader import Downloader, LoadOutcome, ShardPart
from s3kv.runtime.ports import LentSlot
from tests.fakes.chunks import CHUNK_BLOCKS, GEOMETRY, FakeSlot, identity_of, key_of

BLOCK_BYTES = GEOMETRY.block_bytes
HOUR_S = 3600.0


def block_bytes(chunk_index: int, block_index: int) -> bytes:
    """What lies in a block, different for each."""
    return bytes((chunk_index * 40 + block_index * 7 + i) % 256 for i in range(BLOCK_BYTES))


def shard_of(chunk_index: int, block_count: int = CHUNK_BLOCKS) -> bytes:
    slot = memoryview(bytearray(GEOMETRY.slot_bytes))
    for i in range(block_count):
        at = GEOMETRY.header_bytes + i * BLOCK_BYTES
        slot[at : at + BLOCK_BYTES] = block_bytes(chunk_index, i)
    return bytes(seal(slot, GEOMETRY, identity_of(chunk_index, block_count), bytes(16)))


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
        copied_ids = tuple(block_ids)

        def copy() -> None:
            wanted = still_wanted() and not self.refuses
            self.copying.set()
            self.held.wait()
            if wanted:
                self.late_count += self.frozen
                for at, block_id in enumerate(copied_ids):
                    self.written[block_id] = bytes(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])
            self.reports.append(wanted)
            on_done(wanted)

        self._thread.submit(copy)

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


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
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
