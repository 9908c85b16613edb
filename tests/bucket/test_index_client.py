"""IndexReader and IndexWriter over a MemoryStore, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.faults import Fail, Faulty, Hold, LoseReply
from s3kv.bucket.memory import MemoryStore
from s3kv.core import keys
from s3kv.core.indexfile import Kind, decode, encode
from s3kv.core.namespace import Namespace
from s3kv.core.records import RECORDS_MAX, RecordSet, make_records
from s3kv.errors import Closed, Denied, Mismatch, Throttled, Transient
from s3kv.runtime.index_client import IndexReader, IndexSettings, IndexWriter
from tests.fakes.clock import FakeClock
from tests.fakes.index_store import make_header
from tests.fakes.namespaces import make_namespace

T = TypeVar("T")

NAMESPACE = make_namespace()


def chunk(*fps: int) -> RecordSet:
    return make_records(fps, 1_800_000_000, 16)


def live(reader: IndexReader) -> list[int]:
    return [int(fp) for fp in reader.snapshot.live().fps]


class Bench:
    """A clock, a bucket with a fault injector, and the processes that share them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(unix_s=self.clock.unix_s)
        self.store = Faulty(self.memory)
        self.tasks: list[asyncio.Task[None]] = []

    def reader(self, settings: IndexSettings | None = None) -> IndexReader:
        settings = settings or IndexSettings()
        return IndexReader(self.store, NAMESPACE, self.clock, settings, random.Random(1))

    def writer(
        self, settings: IndexSettings | None = None, store: ObjectStore | None = None
    ) -> IndexWriter:
        settings = settings or IndexSettings()
        return IndexWriter(store or self.store, NAMESPACE, self.clock, settings, random.Random(2))

    async def start(self, client: IndexReader) -> asyncio.Task[None]:
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        await self.clock.settle()
        return task

    async def begin(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        await self.clock.settle()
        return task

    def names(self, part: str) -> list[str]:
        return sorted(key for key in self.memory.objects if part in key)

    def calls(self, operation: str, part: str = "") -> int:
        return sum(op == operation and part in key for op, key in self.store.calls)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


# ---------------------------------------------------------------- following


async def test_a_reader_of_an_empty_archive_opens_empty(bench: Bench) -> None:
    reader = bench.reader()
    await bench.start(reader)

    await reader.wait_opened()

    assert reader.snapshot.is_fresh(bench.clock.monotonic_s())
    assert live(reader) == []
    assert bench.memory.objects == {}, "a reader writes nothing"


async def test_a_commit_is_seen_by_another_process_within_seconds(bench: Bench) -> None:
    reader, writer = bench.reader(), bench.writer()
    await bench.start(reader)
    await bench.start(writer)

    await bench.begin(writer.commit(chunk(1)))
    await bench.clock.advance(8.0)
    assert live(reader) == live(writer) == [1]

    await bench.begin(writer.commit(chunk(2)))
    await bench.clock.advance(2.1)
    assert live(reader) == [1, 2]


async def test_an_idle_reader_costs_one_request_a_second(bench: Bench) -> None:
    await bench.start(bench.reader())
    bench.store.calls.clear()

    await bench.clock.advance(60.0)

    assert 58 <= len(bench.store.calls) <= 60
    assert bench.calls("get", "/tick/") == len(bench.store.calls)


async def test_a_reader_survives_an_outage_and_says_meanwhile_that_it_is_not_fresh(
    bench: Bench,
) -> None:
    reader = bench.reader()
    await bench.start(reader)
    bench.store.inject(Fail(Transient("down")), times=None)
    await bench.clock.advance(70.0)
    assert not reader.snapshot.is_fresh(bench.clock.monotonic_s())
    outage_calls = len(bench.store.calls)
    await bench.clock.advance(300.0)
    assert len(bench.store.calls) - outage_calls < 4 * 300 / 15 + 8, "it backs off"

    bench.store.heal()
    await bench.clock.advance(31.0)

    assert reader.snapshot.is_fresh(bench.clock.monotonic_s())
    assert reader.duties.failures > 0


async def test_a_reader_survives_what_nobody_foresaw(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reader = bench.reader()
    bench.store.inject(Fail(ZeroDivisionError()), times=2)  # type: ignore[arg-type]
    await bench.start(reader)
    await bench.clock.advance(5.0)

    assert reader.snapshot.opened
    assert (
        sum(
            "Traceback" in record.getMessage() or record.exc_info is not None
            for record in caplog.records
        )
        == 1
    )


async def test_a_tick_larger_than_any_is_skipped_and_the_reader_goes_on(bench: Bench) -> None:
    bench.memory.write(keys.tick_key(NAMESPACE.id, 1), bytes(2 << 20))
    reader = bench.reader()
    await bench.start(reader)
    await bench.clock.settle()

    assert reader.snapshot.opened
    assert reader.snapshot.incomplete
    assert reader.snapshot.head == 1
    assert reader.duties.failures == 0


async def test_a_denied_reader_asks_rarely_and_says_so_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reader = bench.reader()
    bench.store.inject(Fail(Denied("403")), times=None)
    await bench.start(reader)
    await bench.clock.advance(600.0)

    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "denied" in lines[0].getMessage()
    assert 10 <= reader.duties.denials <= 21
    assert not reader.snapshot.opened

    bench.store.heal()
    await bench.clock.advance(61.0)
    assert reader.snapshot.opened


async def test_run_ends_when_the_store_is_closed(bench: Bench) -> None:
    task = await bench.start(bench.reader())
    await bench.store.close()
    await bench.clock.advance(2.0)

    assert task.done()
    assert task.exception() is None


async def test_a_sleeping_machine_resyncs_when_it_wakes(bench: Bench) -> None:
    """While it slept its next tick was folded into a run and cleaned up (R4)."""
    reader = bench.reader()
    await bench.start(reader)
    header = replace(make_header(Kind.RUN, 1, 500), namespace=NAMESPACE.id)
    bench.memory.write(keys.run_key(NAMESPACE.id, 1, 500), encode(header, chunk(5)))
    bench.clock.jump(7_200.0)
    assert not reader.snapshot.is_fresh(bench.clock.monotonic_s())

    await bench.clock.advance(2.0)

    assert live(reader) == [5]
    assert reader.snapshot.head == 500


async def test_local_knowledge_is_seen_at_once_and_written_nowhere(bench: Bench) -> None:
    reader = bench.reader()
    await bench.start(reader)

    reader.note(chunk(7))

    assert live(reader) == [7]
    assert bench.memory.objects == {}


# ---------------------------------------------------------------- the namespace


def _colliding() -> Namespace:
    """Another namespace's document where ours belongs: the id alone does not decide."""
    return make_namespace(label="theirs", weights="x" * 64)


async def test_a_namespace_document_with_other_fields_is_refused_by_name(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.memory.write(keys.namespace_key(NAMESPACE.id), _colliding().document)
    reader, writer = bench.reader(), bench.writer()
    task = await bench.start(reader)
    await bench.start(writer)

    with pytest.raises(Mismatch, match="label, weights"):
        await reader.wait_opened()
    with pytest.raises(Mismatch):
        await writer.commit(chunk(1))
    assert "label, weights" in reader.refused
    assert not reader.snapshot.opened
    assert task.done()
    assert sum("label, weights" in record.getMessage() for record in caplog.records) == 2
    assert bench.names("/idx/") == []


@pytest.mark.parametrize("document", [b"", b"junk", b'{"format_version":99}', bytes(2 << 20)])
async def test_a_namespace_document_that_cannot_be_understood_is_refused(
    bench: Bench, document: bytes
) -> None:
    bench.memory.write(keys.namespace_key(NAMESPACE.id), document)
    reader = bench.reader()
    await bench.start(reader)

    with pytest.raises(Mismatch, match=r"NAMESPACE|version"):
        await reader.wait_opened()


async def test_a_document_that_appears_later_is_compared_before_its_records_are_used(
    bench: Bench,
) -> None:
    reader, writer = bench.reader(), bench.writer()
    await bench.start(reader)
    await bench.start(writer)
    await bench.begin(writer.commit(chunk(1)))
    bench.memory.write(keys.namespace_key(NAMESPACE.id), _colliding().document)

    await bench.clock.advance(10.0)

    assert "label" in reader.refused


async def test_the_document_is_written_before_anything_else_and_only_once(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    await bench.clock.advance(2.0)
    await writer.commit(chunk(2))

    writes = [(op, key) for op, key in bench.store.calls if op in ("put", "create")]
    assert writes[0] == ("create", keys.namespace_key(NAMESPACE.id))
    assert sum(key.endswith("NAMESPACE.json") for _, key in writes) == 1
    assert bench.memory.objects[keys.namespace_key(NAMESPACE.id)] == NAMESPACE.document


# ---------------------------------------------------------------- commits


async def test_a_commit_returns_when_its_segment_is_durable_and_not_before(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put", keys="*/inbox/*")
    writer = bench.writer()
    await bench.start(writer)

    commit = await bench.begin(writer.commit(chunk(1)))
    assert hold.entered.is_set()
    assert not commit.done()
    assert live(writer) == []

    hold.released.set()
    await bench.clock.settle()
    assert commit.done()
    (name,) = bench.names("/inbox/")
    found = keys.parse_segment_key(name)
    assert found is not None
    body = bench.memory.objects[name]
    _, records = decode(body, NAMESPACE.id, Kind.SEGMENT, found.seq, found.seq)
    assert records.fps.tolist() == [1]


async def test_the_first_commit_is_written_at_once_and_those_after_it_together(
    bench: Bench,
) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))

    commits = [await bench.begin(writer.commit(chunk(fp))) for fp in (2, 3, 4)]
    assert not any(commit.done() for commit in commits)
    assert len(bench.names("/inbox/")) == 1

    await bench.clock.advance(1.1)
    assert all(commit.done() for commit in commits)
    assert len(bench.names("/inbox/")) == 2
    assert writer.counts.commits == 2
    assert writer.counts.records_committed == 4


async def test_the_advice_of_the_newest_tick_is_obeyed(bench: Bench) -> None:
    header = replace(make_header(Kind.TICK, 1, interval_ms=4_000), namespace=NAMESPACE.id)
    bench.memory.write(keys.tick_key(NAMESPACE.id, 1), encode(header, chunk(9)))
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    commit = await bench.begin(writer.commit(chunk(2)))

    await bench.clock.advance(3.8)
    assert not commit.done()
    await bench.clock.advance(0.4)
    assert commit.done()


async def test_a_single_writer_soon_commits_straight_into_ticks(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    await bench.clock.advance(6.0)
    assert writer.sequencer.leads

    await writer.commit(chunk(2))

    assert bench.names("/inbox/") == []
    assert bench.calls("put", "/inbox/") == 1


async def test_a_commit_that_fails_for_a_while_is_written_when_the_store_is_back(
    bench: Bench,
) -> None:
    writer = bench.writer()
    await bench.start(writer)
    bench.store.inject(Fail(Throttled("503")), "put", times=9)

    commit = await bench.begin(writer.commit(chunk(1)))
    await bench.clock.advance(0.1)
    assert not commit.done()
    await bench.clock.advance(10.0)

    assert commit.done()
    assert commit.exception() is None


async def test_a_lost_reply_does_not_lose_the_commit(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    bench.store.inject(LoseReply(Transient("timeout")), "put")

    await writer.commit(chunk(1))

    assert len(bench.names("/inbox/")) == 1


async def test_a_commit_is_given_up_when_it_must_not_be_announced_any_more(bench: Bench) -> None:
    """Its shards may be swept by then (R5)."""
    writer = bench.writer()
    await bench.start(writer)
    bench.store.inject(Fail(Transient("down")), "put", times=None)
    commit = await bench.begin(writer.commit(chunk(1), bench.clock.monotonic_s() + 20.0))

    await bench.clock.advance(21.0)
    assert isinstance(commit.exception(), Transient)
    assert writer.counts.records_given_up == 1

    bench.store.heal()
    await bench.clock.advance(60.0)
    assert bench.names("/inbox/") == []


async def test_a_machine_that_slept_does_not_announce_what_it_queued_before(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    commit = await bench.begin(writer.commit(chunk(2)))

    bench.clock.jump(1_801.0)
    await bench.clock.advance(1.0)

    assert isinstance(commit.exception(), Transient)
    await bench.clock.advance(10.0)
    assert live(writer) == [1]


async def test_a_denied_commit_fails_at_once(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    bench.store.inject(Fail(Denied("403")), "put", times=None)

    with pytest.raises(Denied):
        await writer.commit(chunk(1))


async def test_too_many_waiting_records_are_refused_and_not_queued(bench: Bench) -> None:
    writer = bench.writer(IndexSettings(queued_records_max=3))
    bench.store.inject(Fail(Transient("down")), "put", times=None)
    await bench.start(writer)
    first = await bench.begin(writer.commit(chunk(1, 2, 3)))

    with pytest.raises(Throttled):
        await writer.commit(chunk(4))

    first.cancel()
    await bench.clock.settle()
    bench.store.heal()
    await bench.clock.advance(31.0)
    await writer.commit(chunk(4))
    assert live(writer) == [4], "who gives up waiting withdraws the records"


async def test_a_commit_larger_than_a_file_is_split(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    fps = np.arange(RECORDS_MAX + 5, dtype=np.uint64)

    commit = await bench.begin(writer.commit(make_records(fps, 1, 16)))
    await bench.clock.advance(2.0)

    assert commit.done()
    assert len(bench.names("/inbox/")) == 2
    assert len(writer.snapshot.live()) == RECORDS_MAX + 5


async def test_an_empty_commit_returns_at_once(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)

    await writer.commit(chunk())

    assert bench.calls("put") == 0


async def test_commits_do_not_wait_for_the_index_to_be_readable(bench: Bench) -> None:
    writer = bench.writer()
    bench.store.inject(Fail(Transient("down")), "get", "list", times=None)
    await bench.start(writer)

    await writer.commit(chunk(1))

    assert not writer.snapshot.opened
    assert len(bench.names("/inbox/")) == 1


# ---------------------------------------------------------------- shutdown and succession


async def test_draining_writes_at_once_what_waits(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    commit = await bench.begin(writer.commit(chunk(2)))
    assert not commit.done()

    assert await writer.drain(4.0) == 0

    assert commit.done()
    assert len(bench.names("/inbox/")) == 2
    with pytest.raises(Closed):
        await writer.commit(chunk(3))


async def test_draining_works_without_the_running_task_and_beside_a_hanging_one(
    bench: Bench,
) -> None:
    idle = bench.writer()
    commit = await bench.begin(idle.commit(chunk(1)))
    assert await idle.drain(4.0) == 0
    assert commit.done()

    busy = bench.writer()
    hold = Hold()
    bench.store.inject(hold, "get", "list")
    await bench.start(busy)
    assert hold.entered.is_set()
    hung = await bench.begin(busy.commit(chunk(2)))
    assert not hung.done(), "the only task is waiting for a listing"
    assert await busy.drain(4.0) == 0
    assert hung.done()


async def test_draining_ends_in_time_and_says_what_was_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    writer = bench.writer()
    await bench.start(writer)
    bench.store.inject(Fail(Transient("down")), "put", times=None)
    commit = await bench.begin(writer.commit(chunk(1, 2)))

    drained = await bench.begin(writer.drain(4.0))
    await bench.clock.advance(3.9)
    assert not drained.done()
    await bench.clock.advance(0.2)

    assert drained.result() == 2
    assert isinstance(commit.exception(), Closed)
    assert any("2 records" in record.getMessage() for record in caplog.records)


async def test_what_a_killed_process_reported_durable_is_in_the_next_ones_index(
    bench: Bench,
) -> None:
    first = bench.writer()
    task = await bench.start(first)
    await first.commit(chunk(1))
    task.cancel()
    assert bench.names("/tick/") == []

    second = bench.writer()
    await bench.start(second)
    await second.wait_opened()

    assert live(second) == [1]
    await bench.clock.advance(8.0)
    assert len(bench.names("/tick/")) == 1, "and it folds what the dead one left"
    assert bench.names("/inbox/") == []


async def test_several_writers_agree_and_none_loses_a_commit(bench: Bench) -> None:
    writers = [bench.writer() for _ in range(3)]
    reader = bench.reader()
    for client in (*writers, reader):
        await bench.start(client)
    expected = []
    commits = []
    for round_ in range(5):
        for i, writer in enumerate(writers):
            fp = round_ * 10 + i
            expected.append(fp)
            commits.append(await bench.begin(writer.commit(chunk(fp))))
        await bench.clock.advance(1.5)
    await bench.clock.advance(10.0)

    assert all(commit.done() and commit.exception() is None for commit in commits)
    for client in (*writers, reader):
        assert live(client) == sorted(expected)
    assert bench.names("/inbox/") == []
    assert sum(writer.sequencer.leads for writer in writers) == 1


async def test_an_unused_archive_is_forgotten_after_its_time_to_live(bench: Bench) -> None:
    writer, reader = bench.writer(IndexSettings(ttl_s=120)), bench.reader()
    await bench.start(writer)
    await bench.start(reader)
    await writer.commit(chunk(1))
    await bench.clock.advance(100.0)
    assert live(reader) == [1]

    await bench.clock.advance(90.0)

    assert live(reader) == live(writer) == []


def test_settings_that_would_break_the_protocol_are_refused() -> None:
    with pytest.raises(ValueError, match="min_age_s"):
        IndexSettings(min_age_s=900)
    with pytest.raises(ValueError, match="head_ttl_s"):
        IndexSettings(poll_interval_s=30.0)
