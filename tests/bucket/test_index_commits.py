"""A commit is durable when it returns, in time, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from s3kv.bucket.faults import Fail, Hold, LoseReply
from s3kv.core import keys
from s3kv.core.indexfile import Kind, decode, encode
from s3kv.core.records import RECORDS_MAX, make_records
from s3kv.errors import Denied, Throttled, Transient
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.index_bench import NAMESPACE, Bench, chunk, live, open_bench
from tests.fakes.index_store import make_header


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


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


async def test_a_leader_that_slept_on_its_way_to_the_tick_does_not_send_it(bench: Bench) -> None:
    writer = bench.writer()
    await bench.start(writer)
    await writer.commit(chunk(1))
    await bench.clock.advance(6.0)
    assert writer.sequencer.leads
    ticks = bench.names("/tick/")
    hold = Hold()
    bench.store.inject(hold, "list", keys="*/inbox/*")
    commit = await bench.begin(writer.commit(chunk(2), bench.clock.monotonic_s() + 20.0))
    await bench.clock.advance(1.0)
    assert hold.entered.is_set()

    bench.clock.jump(21.0)
    hold.released.set()
    await bench.clock.advance(10.0)

    assert isinstance(commit.exception(), Transient)
    assert bench.names("/tick/") == ticks
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
