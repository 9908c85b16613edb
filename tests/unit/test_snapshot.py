"""Snapshots: what is present, dead, stale or fresh, and that learning never changes an old one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from s3kv.core.records import DEAD, RecordSet, make_records, merge
from s3kv.core.snapshot import RECENT_MAX, Snapshot


def fps(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def rows(records: RecordSet) -> list[tuple[int, ...]]:
    columns = (records.fps, records.seen_s, records.blocks, records.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def many(count: int, seen_s: int) -> RecordSet:
    return make_records(np.arange(count, dtype=np.uint64) * 3, seen_s, 16)


def test_nothing_is_present_in_an_empty_snapshot() -> None:
    assert Snapshot().present(fps(1, 2)).tolist() == [False, False]
    assert Snapshot().dead(fps(1)).tolist() == [False]
    assert Snapshot().present(fps()).tolist() == []


@pytest.mark.parametrize("size", [10, RECENT_MAX + 10])
def test_present_finds_records_in_base_and_recent(size: int) -> None:
    snapshot = Snapshot().absorb(many(size, 5)).absorb(make_records([1, 2**64 - 1], 6, 8))

    wanted = fps(0, 1, 2, 3, 2**64 - 1, 2**63)
    assert snapshot.present(wanted).tolist() == [True, True, False, True, True, False]


def test_news_that_are_older_than_what_is_known_change_nothing() -> None:
    base = Snapshot().absorb(many(RECENT_MAX + 1, 100))

    after = base.absorb(make_records([3], 99, 0, DEAD))

    assert after.present(fps(3)).tolist() == [True]


def test_a_dead_record_hides_what_the_base_holds_and_a_later_one_brings_it_back() -> None:
    base = Snapshot().absorb(many(RECENT_MAX + 1, 100))
    dead = base.absorb(make_records([3], 101, 0, DEAD))
    back = dead.absorb(make_records([3], 102, 16))

    assert [s.present(fps(3)).tolist()[0] for s in (base, dead, back)] == [True, False, True]
    assert [s.dead(fps(3)).tolist()[0] for s in (base, dead, back)] == [False, True, False]


def test_absorbing_leaves_the_older_snapshot_as_it_was() -> None:
    before = Snapshot().absorb(make_records([1], 5, 16))
    before.absorb(make_records([1], 6, 0, DEAD))

    assert before.present(fps(1)).tolist() == [True]


def test_any_order_of_news_gives_the_same_index() -> None:
    rng = random.Random(7)
    parts = [
        make_records(
            [rng.randrange(40_000) for _ in range(n)],
            [rng.randrange(5) for _ in range(n)],
            16,
            [rng.randrange(2) for _ in range(n)],
        )
        for n in (1, 300, 20_000, 5, 9_000, 9_000)
    ]
    wanted = np.arange(40_000, dtype=np.uint64)
    expected = merge(parts)
    for _ in range(4):
        rng.shuffle(parts)
        snapshot = Snapshot()
        for part in parts:
            snapshot = snapshot.absorb(part)
        assert rows(snapshot.live()) == rows(expected.take(expected.live(0)))
        assert wanted[snapshot.present(wanted)].tolist() == snapshot.live().fps.tolist()


def test_the_watermark_kills_in_base_and_recent_alike() -> None:
    snapshot = Snapshot(watermark_s=10).absorb(many(RECENT_MAX + 1, 9))
    snapshot = snapshot.absorb(make_records([1, 2], [9, 10], 16))

    assert snapshot.present(fps(0, 1, 2)).tolist() == [False, False, True]
    assert snapshot.dead(fps(1, 7)).tolist() == [True, False]
    assert snapshot.live().fps.tolist() == [2]


def test_what_is_below_the_watermark_takes_no_memory_for_long() -> None:
    snapshot = Snapshot(watermark_s=10).absorb(many(RECENT_MAX + 1, 9))

    assert len(snapshot.base) + len(snapshot.recent) == 0


def test_stale_use_names_the_present_chunks_whose_use_is_old() -> None:
    snapshot = Snapshot().absorb(make_records([1, 2, 3], [100, 200, 100], 16, [0, 0, 1]))

    assert snapshot.stale_use(fps(2, 1, 3, 4), 300.0, 150.0).tolist() == [1]


def test_a_snapshot_is_fresh_until_its_proof_is_as_old_as_the_limit() -> None:
    snapshot = Snapshot(opened=True, head_seen_s=1_000.0, head_ttl_s=60.0)

    assert snapshot.is_fresh(1_059.9)
    assert not snapshot.is_fresh(1_060.0)
    assert not Snapshot(opened=False, head_seen_s=1_000.0).is_fresh(1_000.0)
    assert not Snapshot(opened=True).is_fresh(1_000.0)


def test_a_dead_report_wins_over_a_record_from_a_fast_clock() -> None:
    snapshot = Snapshot().absorb(make_records([1], 5_000, 16))

    after = snapshot.absorb(snapshot.dead_records(fps(1, 2), now_unix_s=1_000.0))

    assert after.present(fps(1)).tolist() == [False]
    assert after.dead(fps(1, 2)).tolist() == [True, True]


def test_a_rewritten_chunk_wins_over_a_dead_report_of_the_same_second() -> None:
    snapshot = Snapshot().absorb(make_records([1], 1_000, 0, DEAD))

    after = snapshot.absorb(snapshot.live_records(fps(1), np.array([7], np.uint16), 1_000.4))

    assert after.present(fps(1)).tolist() == [True]
    assert rows(after.live()) == [(1, 1_001, 7, 0)]


def test_times_at_the_end_of_their_column_do_not_wrap() -> None:
    snapshot = Snapshot().absorb(make_records([1], 2**32 - 1, 0, DEAD))

    records = snapshot.live_records(fps(1), np.array([7], np.uint16), 1_000.0)

    assert records.seen_s.tolist() == [2**32 - 1]


def test_a_use_by_a_slow_clock_is_not_below_the_watermark() -> None:
    """Else what an engine has just archived would be dead on arrival, again and again."""
    snapshot = Snapshot(watermark_s=1_000)
    fps, blocks = np.array([5], np.uint64), np.array([16], np.uint16)
    after = snapshot.absorb(snapshot.live_records(fps, blocks, 400.0))
    assert after.present(fps).tolist() == [True]
