"""An index that a newer version has written is refused: no hits, no saves, nothing touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from s3kv.core import keys
from s3kv.core.compactor import CompactorSettings
from s3kv.core.indexfile import Header, Kind, encode
from s3kv.core.snapshot import Pause
from s3kv.errors import Mismatch
from s3kv.runtime.index_client import IndexReader, IndexSettings
from tests.fakes.index_bench import NAMESPACE, Bench, chunk, open_bench
from tests.fakes.newer import as_newer

WORDS = "this build reads 's3kv-index/1': upgrade s3kv"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


def newer_file(kind: Kind, lo: int, hi: int) -> bytes:
    header = Header(
        kind=kind,
        namespace=NAMESPACE.id,
        lo=lo,
        hi=hi,
        writer=b"n" * 16,
        watermark_s=0,
        interval_ms=1_000,
        created_s=0,
        pause_bits=0,
    )
    return as_newer(encode(header, chunk(9)))


def assert_refused(reader: IndexReader, caplog: pytest.LogCaptureFixture, words: str) -> None:
    assert words in reader.refused
    assert reader.snapshot.pause == Pause(loads=True, saves=True)
    lines = [record for record in caplog.records if words in record.getMessage()]
    assert len(lines) == 1, "one clear line"


async def test_a_reader_refuses_a_newer_index_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.memory.write(keys.tick_key(NAMESPACE.id, 1), newer_file(Kind.TICK, 1, 1))
    reader = bench.reader()
    task = await bench.start(reader)

    with pytest.raises(Mismatch, match=WORDS):
        await reader.wait_opened()

    assert task.done()
    assert_refused(reader, caplog, WORDS)


async def test_a_running_engine_stops_when_a_newer_one_writes_the_next_tick(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    writer = bench.writer()
    task = await bench.start(writer)
    await writer.commit(chunk(1))
    head = writer.snapshot.head
    bench.memory.write(
        keys.tick_key(NAMESPACE.id, head + 1), newer_file(Kind.TICK, head + 1, head + 1)
    )
    before = bench.names("/idx/")

    await bench.clock.advance(30.0)

    assert task.done()
    assert_refused(writer, caplog, WORDS)
    with pytest.raises(Mismatch, match=WORDS):
        await writer.commit(chunk(2))
    assert bench.names("/idx/") == before


async def test_a_newer_run_that_only_the_compactor_reads_stops_the_engine_as_well(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    writer = bench.writer(IndexSettings(compactor=CompactorSettings(ticks_min=3, check_s=20.0)))
    task = await bench.start(writer)
    await writer.commit(chunk(1))
    await bench.clock.advance(8.0)
    assert writer.sequencer.leads
    newer = keys.run_key(NAMESPACE.id, 1, 1)
    bench.memory.write(newer, newer_file(Kind.RUN, 1, 1))
    commits = []
    for fp in range(2, 9):
        commits.append(await bench.begin(writer.commit(chunk(fp))))
        await bench.clock.advance(4.0)
    writer.upkeep.wake()
    # The run is decoded on a thread, which knows nothing of the bench's clock.
    async with asyncio.timeout(10.0):
        while not task.done():
            await bench.clock.advance(1.0)
    await asyncio.gather(*commits, return_exceptions=True)

    assert_refused(writer, caplog, WORDS)
    assert bench.names("/run/") == [newer]
    assert keys.tick_key(NAMESPACE.id, 1) in bench.memory.objects


async def test_a_newer_namespace_document_is_refused_with_its_version(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.memory.write(keys.namespace_key(NAMESPACE.id), b'{"format_version":2}')
    writer = bench.writer()
    await bench.start(writer)

    with pytest.raises(Mismatch):
        await writer.commit(chunk(1))

    assert_refused(writer, caplog, "NAMESPACE.json has format '2'; this build reads '1'")
    assert bench.names("/idx/") == []
