"""What a reader sees of the index, whatever the store does, and whose namespace it is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from s3kv.bucket.faults import Fail
from s3kv.core import keys
from s3kv.core.indexfile import Kind, encode
from s3kv.core.namespace import Namespace
from s3kv.errors import Denied, Mismatch, Transient
from tests.fakes.index_bench import NAMESPACE, Bench, chunk, live, open_bench
from tests.fakes.index_store import make_header
from tests.fakes.namespaces import make_namespace


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


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
