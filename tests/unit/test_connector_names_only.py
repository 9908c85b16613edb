"""Without a conditional PUT there is no index: names alone tell what is archived (ADR 0004)."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3kv.bucket.base import CREATED, Created, Exists
from s3kv.bucket.memory import MemoryStore
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import BlockHash
from s3kv.core.keys import namespace_key
from s3kv.errors import Mismatch
from s3kv.runtime.index_client import IndexReader, IndexSettings
from tests.fakes.clock import FakeClock
from tests.fakes.namespaces import make_namespace
from tests.unit.connector_values import WorkerArchive
from tests.unit.test_connector_shutdown import NoSlots

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector.scheduler_archive import SchedulerArchive
    from s3kv.connector.store_check import Verdict

NAMESPACE = make_namespace()
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 64),), 4)
CHUNK = BlockHash(b"c" * 32)
DAY_S = 86_400.0


class Unconditional(MemoryStore):
    """A store that takes If-None-Match for a comment."""

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        await self.put(key, body, timeout_s=timeout_s)
        return CREATED


class Bench:
    def __init__(self, hashing: ThreadPoolExecutor) -> None:
        self.clock = FakeClock()
        self.memory = Unconditional(unix_s=self.clock.unix_s)
        self._hashing = hashing

    def archive(self, verdict: Verdict) -> WorkerArchive:
        made = WorkerArchive(
            self.memory,
            NAMESPACE,
            GEOMETRY,
            NoSlots(),
            self._hashing,
            self.clock,
            IndexSettings(),
            4,
        )
        made.start()
        made.judge(verdict)
        return made

    def names(self) -> set[str]:
        return set(self.memory.objects)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with ThreadPoolExecutor(1) as hashing:
        yield Bench(hashing)


async def test_a_chunk_is_announced_by_its_name_and_no_index_file_is_ever_written(
    bench: Bench,
) -> None:
    archive = bench.archive(Verdict(names_only=True))
    await archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0)
    await archive.record([(CHUNK, 4)], dead=False)
    await archive.record([(CHUNK, 4)], dead=True)
    await bench.clock.advance(10.0)

    assert bench.names() == {namespace_key(NAMESPACE.id)}
    assert bench.memory.objects[namespace_key(NAMESPACE.id)] == NAMESPACE.document
    await archive.drain(0.1)


async def test_the_namespace_is_compared_before_anything_is_announced(bench: Bench) -> None:
    other = make_namespace(label="other")
    archive = bench.archive(Verdict(names_only=True))
    await bench.clock.settle()
    await bench.memory.put(namespace_key(NAMESPACE.id), other.document, timeout_s=1.0)
    with pytest.raises(Mismatch, match="label"):
        await archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0)
    assert bench.memory.objects[namespace_key(NAMESPACE.id)] == other.document
    await archive.drain(0.1)


async def test_what_this_process_announced_is_looked_at_again_before_it_is_believed(
    bench: Bench,
) -> None:
    """A lifecycle rule may have taken it, and no load error tells where a HEAD says no."""
    archive = bench.archive(Verdict(names_only=True))
    await bench.clock.settle()
    await archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0)
    assert not archive.knows(CHUNK)
    assert not archive.knows_dead(CHUNK)
    await archive.record([(CHUNK, 4)], dead=True)
    assert archive.knows_dead(CHUNK)
    await archive.drain(0.1)


async def test_an_object_of_any_age_is_as_good_as_an_upload_where_nobody_sweeps(
    bench: Bench,
) -> None:
    names = bench.archive(Verdict(names_only=True))
    indexed = bench.archive(Verdict())
    assert names.found_age_max_s > 100 * DAY_S
    assert indexed.found_age_max_s == IndexSettings().min_age_s / 2
    await asyncio.gather(names.drain(0.1), indexed.drain(0.1))


# ------------------------------------------------------------------- the other side


async def following(bench: Bench) -> tuple[IndexReader, asyncio.Task[None]]:
    reader = IndexReader(bench.memory, NAMESPACE, bench.clock, IndexSettings())
    task = asyncio.create_task(reader.run())
    await bench.clock.settle()
    return reader, task


async def test_an_archive_without_a_log_is_no_empty_archive(bench: Bench) -> None:
    archive = bench.archive(Verdict(names_only=True))
    await archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0)
    reader, task = await following(bench)
    assert reader.snapshot.opened
    assert reader.is_unindexed
    task.cancel()
    await archive.drain(0.1)


async def test_an_archive_that_begins_later_is_noticed_within_a_minute(bench: Bench) -> None:
    reader, task = await following(bench)
    assert not reader.is_unindexed, "nothing is there at all"
    archive = bench.archive(Verdict(names_only=True))
    await archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0)
    bench.clock.jump(61.0)
    await bench.clock.advance(2.0)
    assert reader.is_unindexed
    task.cancel()
    await archive.drain(0.1)


async def test_an_archive_with_a_log_is_indexed(bench: Bench) -> None:
    archive = bench.archive(Verdict())
    commit = asyncio.create_task(archive.announce(CHUNK, 4, bench.clock.monotonic_s() + 60.0))
    await bench.clock.advance(10.0)
    await commit
    reader, task = await following(bench)
    assert not reader.is_unindexed
    task.cancel()
    await archive.drain(0.1)


def test_the_scheduler_side_probes_where_there_is_no_log() -> None:
    """Its lookups take an index that is not open for a reason to ask for names."""
    reader = SchedulerArchive.__new__(SchedulerArchive)
    following = _Following(is_unindexed=True)
    reader._reader = following  # type: ignore[assignment]
    assert not reader.snapshot.opened
    following.is_unindexed = False
    assert reader.snapshot.opened


class _Following:
    def __init__(self, *, is_unindexed: bool) -> None:
        from s3kv.core.snapshot import Snapshot

        self.snapshot = Snapshot(opened=True)
        self.is_unindexed = is_unindexed
