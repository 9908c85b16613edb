"""Shutting down: what is staged is published whatever the pace of the index, the rest counted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from s3kv.bucket.faults import Faulty, Hold
from s3kv.bucket.memory import MemoryStore
from s3kv.core import keys
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, fingerprints
from s3kv.core.indexfile import Kind, encode
from s3kv.core.records import make_records
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexReader, IndexSettings
from s3kv.runtime.ports import LentSlot
from s3kv.runtime.uploader import SaveFate
from tests.fakes.index_store import make_header
from tests.fakes.namespaces import make_namespace
from tests.unit.connector_values import ChunkAddress, WorkerArchive

NAMESPACE = make_namespace()
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 64),), 4)
DRAIN_S = 3.0


@dataclass
class FakeSlot:
    memory: memoryview


class NoSlots:
    async def lend_for_load(self, timeout_s: float) -> LentSlot | None:
        return None

    def give_back(self, slot: LentSlot) -> None:
        raise AssertionError("nothing was lent")


@dataclass
class Bench:
    memory: MemoryStore
    store: Faulty
    archive: WorkerArchive
    fates: list[SaveFate] = field(default_factory=list)

    def save(self, index: int) -> ChunkAddress:
        names = tuple(BlockHash(hashlib.sha256(b"%d.%d" % (index, i)).digest()) for i in range(4))
        address = ChunkAddress(names[-1], ZERO_HASH, names)
        self.archive.save(
            address,
            FakeSlot(memoryview(bytearray(GEOMETRY.slot_bytes))),
            lambda _: None,
            lambda fate, _: self.fates.append(fate),
            rewrite=False,
        )
        return address

    async def listed(self, address: ChunkAddress) -> bool:
        """What another engine sees that opens now."""
        reader = IndexReader(self.memory, NAMESPACE, Clock(), IndexSettings())
        running = asyncio.ensure_future(reader.run())
        await asyncio.wait_for(reader.wait_opened(), 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return bool(reader.snapshot.present(fingerprints([address.chunk_hash]))[0])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    memory = MemoryStore()
    store = Faulty(memory)
    with ThreadPoolExecutor(2) as hashing:
        archive = WorkerArchive(
            store, NAMESPACE, GEOMETRY, NoSlots(), hashing, Clock(), IndexSettings(), 4
        )
        yield Bench(memory, store, archive)
        await archive.drain(0.1)


async def test_a_save_is_published_although_commits_were_advised_to_wait(bench: Bench) -> None:
    slow = replace(make_header(Kind.TICK, 1), namespace=NAMESPACE.id, interval_ms=55_000)
    first = make_records(np.array([7], np.uint64), 1_800_000_000, 4)
    bench.memory.write(keys.tick_key(NAMESPACE.id, 1), encode(slow, first))
    bench.memory.write(keys.namespace_key(NAMESPACE.id), NAMESPACE.document)
    bench.archive.start()
    before = bench.save(0)
    # The first commit goes at once, the next has to wait.
    while not bench.fates:  # noqa: ASYNC110  tasks end by themselves
        await asyncio.sleep(0.01)
    held = bench.save(1)
    assert await bench.archive.drain(DRAIN_S) == 0
    assert bench.fates == [SaveFate.UPLOADED] * 2
    assert await bench.listed(before)
    assert await bench.listed(held)


async def test_a_save_is_published_although_following_the_index_hangs(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "list", times=None)
    bench.archive.start()
    await asyncio.wait_for(hold.entered.wait(), 20)
    held = bench.save(1)
    assert await bench.archive.drain(DRAIN_S) == 0
    assert bench.fates == [SaveFate.UPLOADED]
    hold.released.set()
    assert await bench.listed(held)


async def test_what_could_not_be_uploaded_is_counted(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put", keys=f"{NAMESPACE.id}/data/*", times=None)
    bench.archive.start()
    for index in range(3):
        bench.save(index)
    await asyncio.wait_for(hold.entered.wait(), 20)
    assert bench.archive.pending_saves == 3
    assert await bench.archive.drain(0.2) == 3
    assert bench.fates == [SaveFate.FAILED] * 3
