"""No commit is lost when writers end, die or work side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.faults import Fail, Hold
from s3kv.core.compactor import CompactorSettings
from s3kv.errors import Closed, Transient
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.index_bench import Bench, chunk, live, open_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


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
    with pytest.raises(ValueError, match="margin_s"):
        IndexSettings(compactor=CompactorSettings(margin_s=900))
