"""The log stays short while engines go on: who leads merges it, beside everything else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.faults import Hold
from s3kv.core import keys
from s3kv.core.compactor import CompactorSettings
from s3kv.runtime.index_client import IndexSettings
from s3kv.runtime.index_writer import IndexWriter
from tests.fakes.index_bench import NAMESPACE, Bench, chunk, live, open_bench

TICKS = 5
MARGIN_S = 3_600.0
RUNS = keys.run_prefix(NAMESPACE.id) + "*"
SETTINGS = IndexSettings(
    compactor=CompactorSettings(ticks_min=TICKS, check_s=600.0, margin_s=MARGIN_S)
)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


async def commit(bench: Bench, writer: IndexWriter, *fps: int) -> None:
    """One tick for each, as engines write them: a second apart."""
    for fp in fps:
        task = await bench.begin(writer.commit(chunk(fp)))
        await bench.clock.advance(3.0)
        await task


async def leading(bench: Bench, settings: IndexSettings = SETTINGS) -> IndexWriter:
    writer = bench.writer(settings)
    await bench.start(writer)
    await commit(bench, writer, 100)
    await bench.clock.advance(10.0)
    assert writer.sequencer.leads
    return writer


async def test_who_leads_merges_the_log_and_cleans_up_an_hour_later(bench: Bench) -> None:
    writer = await leading(bench)
    await commit(bench, writer, *range(2 * TICKS))
    assert bench.names("/run/")
    before = len(bench.names("/tick/"))
    assert before > TICKS

    bench.clock.jump(MARGIN_S)
    await bench.clock.advance(5.0)
    await commit(bench, writer, *range(2 * TICKS))
    assert len(bench.names("/tick/")) < before
    reader = bench.reader()
    await bench.start(reader)
    assert set(live(reader)) == {*range(2 * TICKS), 100}


async def test_nobody_else_compacts(bench: Bench) -> None:
    leader = await leading(bench, IndexSettings())
    idle = bench.writer(SETTINGS)
    await bench.start(idle)
    await commit(bench, leader, *range(2 * TICKS))
    bench.clock.jump(700.0)
    await bench.clock.advance(5.0)
    assert not idle.sequencer.leads
    assert bench.names("/run/") == []


async def test_a_run_on_its_way_holds_up_no_commit(bench: Bench) -> None:
    writer = await leading(bench)
    hold = Hold()
    bench.store.inject(hold, "put", keys=RUNS)
    await commit(bench, writer, *range(2 * TICKS))
    assert hold.entered.is_set()
    await commit(bench, writer, 77)
    assert 77 in live(writer)
    hold.released.set()
    await bench.clock.advance(1.0)
    assert bench.names("/run/")


async def test_before_the_store_has_proved_itself_nothing_is_merged(bench: Bench) -> None:
    leader = await leading(bench)
    leader.writes_allowed = False
    await commit(bench, leader, *range(2 * TICKS))
    bench.clock.jump(700.0)
    await bench.clock.advance(5.0)
    assert bench.names("/run/") == []


async def test_a_log_that_cannot_be_merged_is_said_and_engines_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    writer = await leading(bench)
    await commit(bench, writer, 0, 1)
    name = bench.names("/tick/")[0]
    await bench.memory.put(name, b"damaged", timeout_s=1.0)
    with caplog.at_level(logging.WARNING):
        await commit(bench, writer, *range(2, 2 * TICKS))
    assert bench.names("/run/") == []
    assert any("not compacted" in line for line in caplog.messages)
    assert 2 * TICKS - 1 in live(writer)


async def test_a_closing_writer_leaves_its_merging_where_it_is(bench: Bench) -> None:
    writer = await leading(bench)
    hold = Hold()
    bench.store.inject(hold, "put", keys=RUNS)
    await commit(bench, writer, *range(2 * TICKS))
    running = bench.tasks[0]
    running.cancel()
    await bench.clock.settle()
    assert running.done()
    assert await writer.drain(4.0) == 0
    assert bench.names("/run/") == []
