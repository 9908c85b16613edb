"""Uses that are written down so late that a sweep may have come first are looked after (R5)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3kv.bucket.faults import Faulty, Hold
from s3kv.bucket.memory import MemoryStore
from s3kv.core import keys
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.clock import FakeClock
from tests.fakes.namespaces import make_namespace
from tests.unit.connector_values import WorkerArchive
from tests.unit.test_connector_shutdown import NoSlots

NAMESPACE = make_namespace()
CHUNK = BlockHash(b"c" * 32)
SLOW_S = 1_801.0


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_use_that_was_written_late_stands_only_if_the_chunk_is_still_there(
    is_there: bool,
) -> None:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s)
    store, hold = Faulty(memory), Hold()
    geometry = ShardGeometry((GroupGeometry("full", 2, 64),), 4)
    with ThreadPoolExecutor(1) as hashing:
        archive = WorkerArchive(
            store, NAMESPACE, geometry, NoSlots(), hashing, clock, IndexSettings(), 4
        )
        archive.start()
        await archive.announce(CHUNK, 4, clock.monotonic_s() + 60.0)
        if is_there:
            memory.write(keys.shard_key(NAMESPACE.id, CHUNK, 0, 1), b"shard")
        await clock.advance(2.0)
        store.inject(hold, "put", keys="*/inbox/*")

        touching = asyncio.ensure_future(archive.record([(CHUNK, 4)], dead=False))
        await clock.settle()
        assert hold.entered.is_set()
        clock.jump(SLOW_S)
        hold.released.set()
        await clock.advance(70.0)
        await touching

        assert archive._writer.snapshot.present(fingerprints([CHUNK])).tolist() == [is_there]
        await archive.drain(0.1)
