"""Saves into a store in memory, an index that is a list, a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from s3kv.bucket.faults import Faulty, Hold
from s3kv.bucket.memory import MemoryStore
from s3kv.core.ids import BlockHash
from s3kv.core.keys import shard_key
from s3kv.errors import S3KVError
from s3kv.runtime.ports import LentSlot
from s3kv.runtime.uploader import SaveFate, Uploader, UploadSettings
from tests.fakes.chunks import GEOMETRY, FakeSlot, identity_of
from tests.fakes.clock import FakeClock
from tests.fakes.index_store import NS

MIN_AGE_S = 3600.0
BOUND_S = MIN_AGE_S / 2
TAIL_BLOCKS = 3


def pattern(index: int, block_count: int = 4) -> bytes:
    return bytes((index * 31 + i) % 251 for i in range(block_count * GEOMETRY.block_bytes))


@dataclass
class FakeIndex:
    """Announces into a list; looks at the store when it does, as a reader would."""

    memory: MemoryStore
    log: list[tuple[str, BlockHash, int]] = field(default_factory=list)
    listed: set[BlockHash] = field(default_factory=set)
    dead: set[BlockHash] = field(default_factory=set)
    saves_paused: bool = False
    found_age_max_s: float = BOUND_S
    error: S3KVError | None = None
    on_announce: Callable[[], None] = lambda: None
    was_durable: list[bool] = field(default_factory=list)
    announced_by_s: list[float] = field(default_factory=list)

    async def announce(self, chunk_hash: BlockHash, block_count: int, announce_by_s: float) -> None:
        self.announced_by_s.append(announce_by_s)
        self.was_durable.append(shard_key(NS, chunk_hash, 0, 1) in self.memory.objects)
        if self.error is not None:
            raise self.error
        self.on_announce()
        self.log.append(("live", chunk_hash, block_count))

    async def disown(self, chunk_hash: BlockHash, block_count: int) -> None:
        self.log.append(("dead", chunk_hash, block_count))

    def knows(self, chunk_hash: BlockHash) -> bool:
        return chunk_hash in self.listed

    def knows_dead(self, chunk_hash: BlockHash) -> bool:
        return chunk_hash in self.dead


@dataclass
class Bench:
    memory: MemoryStore
    store: Faulty
    index: FakeIndex
    clock: FakeClock
    uploader: Uploader
    outcomes: dict[BlockHash, list[tuple[SaveFate, str]]] = field(default_factory=dict)
    lent: set[LentSlot] = field(default_factory=set)
    returned_before: list[str] = field(default_factory=list)

    def submit(self, index: int = 0, *, block_count: int = 4, rewrite: bool = False) -> None:
        identity = identity_of(index, block_count)
        slot: LentSlot = FakeSlot(memoryview(bytearray(GEOMETRY.slot_bytes)))
        data = pattern(index, block_count)
        slot.memory[GEOMETRY.header_bytes : GEOMETRY.header_bytes + len(data)] = data
        self.lent.add(slot)
        outcomes = self.outcomes.setdefault(identity.chunk_hash, [])
        self.uploader.submit(
            identity,
            slot,
            self._give_back,
            lambda fate, detail: outcomes.append((fate, detail)),
            rewrite=rewrite,
        )

    async def crowd(self) -> Hold:
        """Submit three saves; the two that run at once are held in their upload."""
        hold = Hold()
        self.store.inject(hold, "put", times=2)
        for index in (0, 1, 2):
            self.submit(index)
        await hold.entered.wait()
        return hold

    def _give_back(self, slot: LentSlot) -> None:
        assert slot in self.lent, "given back twice"
        self.lent.remove(slot)
        slot.memory[:] = b"\xee" * len(slot.memory)
        self.returned_before.append("live" if self.index.log else "announcement")

    async def save(
        self, index: int = 0, *, block_count: int = 4, rewrite: bool = False
    ) -> SaveFate:
        """One save to its end: its slot is back, its outcome is one."""
        self.submit(index, block_count=block_count, rewrite=rewrite)
        await self.ended()
        ((fate, _),) = self.outcomes[identity_of(index, block_count).chunk_hash]
        assert not self.lent
        return fate

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            while self.uploader.pending_count:  # noqa: ASYNC110  tasks end by themselves
                await asyncio.sleep(0)

    def detail(self, index: int = 0) -> str:
        ((_, detail),) = self.outcomes[identity_of(index).chunk_hash]
        return detail

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.store.calls]


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s)
    store, index = Faulty(memory), FakeIndex(memory)
    settings = UploadSettings(min_age_s=MIN_AGE_S, concurrency=2)
    with ThreadPoolExecutor(1) as hashing:
        uploader = Uploader(store, index, GEOMETRY, hashing, clock, settings)
        made = Bench(memory, store, index, clock, uploader)
        yield made
        store.heal()
        await uploader.drain(20)
    assert not made.lent
    assert all(len(outcomes) == 1 for outcomes in made.outcomes.values())
