"""Files of a newer format version end the work, politely: nothing is skipped, deleted, written."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from s3kv.core import keys
from s3kv.core.compactor import Compactor, CompactorSettings
from s3kv.core.ids import BlockHash
from s3kv.core.indexfile import FORMAT, Kind, encode
from s3kv.core.pinset import SET_FORMAT, decode_set, encode_set, make_set
from s3kv.core.sequencer import SequencerSettings
from s3kv.errors import NewerFormat
from s3kv.runtime.downloader import LoadFault
from tests.fakes.chunks import GEOMETRY, identity_of, key_of
from tests.fakes.followers import WRITER, live, new_follower, put_run, put_segment, put_tick
from tests.fakes.index_store import NS, IndexStore, make_header
from tests.fakes.load_bench import Bench, open_bench, parts_of, shard_of
from tests.fakes.newer import as_newer, as_newer_shard, renamed
from tests.fakes.sequencers import chunk, leading_engine, new_engine

WORDS = r"format 's3kv-index/2'; this build reads 's3kv-index/1': upgrade s3kv .* namespace label"


def make_newer(store: IndexStore, key: str) -> None:
    body, at_s = store.objects[key]
    store.objects[key] = (as_newer(body), at_s)


def with_newer(kind: Kind) -> tuple[IndexStore, str]:
    """A log of ticks 1 to 3 and a segment, where one file is of the next version."""
    store = IndexStore()
    for number in (1, 2, 3):
        put_tick(store, number, chunk(number))
    put_segment(store, 1, chunk(4))
    put_run(store, 1, 2, chunk(1, 2))
    key = {
        Kind.TICK: keys.tick_key(NS, 3),
        Kind.RUN: keys.run_key(NS, 1, 2),
        Kind.SEGMENT: keys.segment_key(NS, WRITER, 1),
    }[kind]
    make_newer(store, key)
    return store, key


@pytest.mark.parametrize("kind", Kind)
def test_a_reader_that_meets_a_newer_file_says_so_and_does_not_open(kind: Kind) -> None:
    store, key = with_newer(kind)
    follower = new_follower()

    with pytest.raises(NewerFormat, match=f"the {kind.value.strip()} .* has {WORDS}"):
        store.run(follower.open())

    assert not follower.snapshot.opened
    assert follower.skipped_count == 0
    assert key in store.objects


def test_a_newer_tick_that_arrives_later_stops_the_reader_where_it_stands() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.run(follower.open())
    put_tick(store, 2, chunk(2))
    make_newer(store, keys.tick_key(NS, 2))

    with pytest.raises(NewerFormat, match=WORDS):
        store.run(follower.poll())

    assert follower.snapshot.head == 1
    assert live(follower) == [1]


def test_a_damaged_file_that_only_claims_to_be_newer_is_skipped_like_any_damage() -> None:
    """One flipped bit makes 3 out of 1: it must not stop a fleet."""
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    put_tick(store, 2, chunk(2))
    body, at_s = store.objects[keys.tick_key(NS, 2)]
    store.objects[keys.tick_key(NS, 2)] = (body.replace(b"index/1", b"index/3"), at_s)

    store.run(follower.open())

    assert live(follower) == [1]
    assert follower.snapshot.incomplete


@pytest.mark.parametrize("format_name", ["s3kv-other/1", "s3kv-other/2", "s3kv-index/x"])
def test_another_format_altogether_is_no_newer_version(format_name: str) -> None:
    body = encode(make_header(Kind.TICK, 2), chunk(2))
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    other = renamed(body, FORMAT, format_name)
    store.objects[keys.tick_key(NS, 2)] = (other, store.now_s)

    store.run(follower.open())

    assert follower.skipped_count == 1


def put_old_newer_segment(store: IndexStore) -> None:
    """So old that somebody should long have folded it, or dropped it as unreadable."""
    put_segment(store, 1, chunk(4))
    key = keys.segment_key(NS, WRITER, 1)
    store.objects[key] = (as_newer(store.objects[key][0]), store.now_s - 7_200.0)


@pytest.mark.parametrize("own", [(), (5,)])
def test_a_sequencer_does_not_fold_over_a_newer_segment_nor_ever_delete_it(
    own: tuple[int, ...],
) -> None:
    settings = SequencerSettings(drop_unreadable_s=60.0)
    store = IndexStore()
    leader = leading_engine(store, settings=settings)
    put_old_newer_segment(store)
    put_segment(store, 2, chunk(5))
    before = dict(store.objects)

    with pytest.raises(NewerFormat, match=WORDS):
        store.run(leader.sequence(store.now(), chunk(*own)))

    assert store.objects == before


def test_nobody_takes_over_from_a_newer_leader() -> None:
    store = IndexStore()
    idle = new_engine(store, "b")
    put_old_newer_segment(store)
    before = dict(store.objects)

    with pytest.raises(NewerFormat):
        store.run(idle.act(store.now()))

    assert store.objects == before


@pytest.mark.parametrize("kind", [Kind.TICK, Kind.RUN])
def test_a_compactor_that_meets_a_newer_file_writes_and_deletes_nothing(kind: Kind) -> None:
    store = IndexStore()
    leader = leading_engine(store)
    for fp in range(1, 6):
        store.run(leader.flush(chunk(fp), store.now()))
    if kind is Kind.RUN:
        put_run(store, 1, 2, chunk(1, 2))
        make_newer(store, keys.run_key(NS, 1, 2))
    else:
        make_newer(store, keys.tick_key(NS, 3))
    store.now_s += 7_200.0
    before = dict(store.objects)
    settings = CompactorSettings(ticks_min=2, margin_s=3_600.0)

    made = Compactor(leader.follower, leader.writer, settings)

    with pytest.raises(NewerFormat, match=WORDS):
        store.run(made.act(store.now()))

    assert store.objects == before


def test_a_newer_pinned_set_is_told_from_a_damaged_one() -> None:
    body = encode_set(make_set(NS, "prompts", {BlockHash(bytes(32)): 16}))

    with pytest.raises(NewerFormat, match="set prompts has format 's3kv-set/2'"):
        decode_set(as_newer(body, SET_FORMAT), NS, "prompts")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


async def test_a_shard_of_a_newer_version_is_not_loaded_and_not_reported_dead(
    bench: Bench,
) -> None:
    newer = as_newer_shard(shard_of(0), GEOMETRY.header_bytes)
    bench.memory.write(key_of(identity_of(0)), newer)

    outcome = await bench.load(parts_of(1))

    assert outcome.faults == {0: LoadFault.NEWER_FORMAT}
    assert not LoadFault.NEWER_FORMAT.lost, "a dead record would make others overwrite it"
    assert bench.blocks.written == {}
