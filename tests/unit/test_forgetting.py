"""How far a tick forgets, and that pinned chunks are used before the rest dies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from s3kv.core.forgetting import Forgetting, Limits, plan_forgetting
from s3kv.core.records import EMPTY, RecordSet, make_records
from s3kv.core.snapshot import Snapshot

NOW_S = 10_000
TTL = Limits(ttl_s=1_000)


def used(*seen_s: int, blocks: int = 16) -> RecordSet:
    """Chunks 0, 1, ... with these last uses."""
    return make_records(np.arange(len(seen_s)), seen_s, blocks)


def plan(
    records: RecordSet,
    limits: Limits = TTL,
    pinned: Sequence[int] = (),
    room: int = 100,
    news: RecordSet = EMPTY,
) -> Forgetting:
    fps = np.array(sorted(pinned), np.uint64)
    return plan_forgetting(Snapshot().absorb(records), news, NOW_S, limits, fps, room)


def test_age_alone_moves_the_watermark() -> None:
    done = plan(used(9_500, 8_000))
    assert (done.watermark_s, done.kills, done.is_news) == (9_000, True, True)
    quiet = plan(used(9_500))
    assert (quiet.watermark_s, quiet.kills, quiet.is_news) == (9_000, False, False)


def test_what_comes_with_the_same_tick_counts() -> None:
    assert plan(EMPTY, news=used(8_000)).kills
    assert not plan(used(8_000), news=used(9_999)).kills


def test_size_forgets_the_least_recently_used_until_the_rest_fits() -> None:
    limits = Limits(max_bytes=2 * 16 * 10, bytes_per_block=10)
    done = plan(used(100, 300, 200, 400), limits)
    assert done.watermark_s == 201
    assert plan(used(300, 400), limits).watermark_s == 0


def test_a_pinned_chunk_is_used_in_the_tick_that_would_have_killed_it() -> None:
    done = plan(used(8_000, 8_000, 9_900), pinned=[0])
    assert done.touches.fps.tolist() == [0]
    assert done.touches.seen_s.tolist() == [NOW_S]
    assert done.touches.blocks.tolist() == [16]
    assert (done.watermark_s, done.kills) == (9_000, True)


def test_a_watermark_that_only_pinned_chunks_are_below_kills_nobody() -> None:
    done = plan(used(8_000), pinned=[0])
    assert (done.kills, done.is_news) == (False, True)


def test_pinned_chunks_that_will_be_due_soon_are_used_along() -> None:
    """So that not every raise of the watermark writes a handful of them."""
    assert plan(used(8_999, 9_499, 9_501), pinned=[0, 1, 2]).touches.fps.tolist() == [0, 1]
    assert plan(used(9_100, 9_499, 9_501), pinned=[0, 1, 2]).touches.fps.tolist() == []


def test_pinned_chunks_take_their_room_and_are_never_chosen() -> None:
    limits = Limits(max_bytes=2 * 16 * 10, bytes_per_block=10)
    done = plan(used(100, 300, 200, 400), limits, pinned=[0])
    assert done.watermark_s == 301
    assert plan(used(200, 300, 400), limits, pinned=[2]).watermark_s == 201
    everything = plan(used(100, 300), Limits(max_bytes=1, bytes_per_block=10), pinned=[0, 1])
    assert everything.kills is False


def test_where_a_tick_has_no_room_the_watermark_waits_for_the_next() -> None:
    done = plan(used(1, 2, 3, 9_999), pinned=[0, 1, 2], room=2)
    assert (done.watermark_s, len(done.touches), done.kills) == (0, 2, False)
    assert plan(used(1, 2, 3), pinned=[0, 1, 2], room=3).watermark_s == 9_000


def test_what_is_pinned_and_not_archived_is_not_invented() -> None:
    assert plan(used(8_000), pinned=[7]).touches.fps.tolist() == []


TIMES = st.lists(st.integers(1, NOW_S), min_size=1, max_size=12)


@given(TIMES, st.sets(st.integers(0, 11)), st.integers(1, 5_000), st.integers(0, 4_000))
def test_no_plan_kills_a_pinned_chunk(
    seen_s: list[int], pinned: set[int], ttl_s: int, max_bytes: int
) -> None:
    limits = Limits(ttl_s=ttl_s, max_bytes=max_bytes, bytes_per_block=10)
    done = plan(used(*seen_s), limits, sorted(pinned))
    before = Snapshot().absorb(used(*seen_s))
    after = before.absorb(done.touches)
    there = pinned & set(range(len(seen_s)))
    live = after.live().take(after.live().seen_s >= done.watermark_s)
    assert there <= set(live.fps.tolist())
    rest = live.take(~np.isin(live.fps, sorted(pinned)))
    # What is used this very second is not forgotten, however much it is.
    assert int(rest.blocks.sum()) * 10 <= max_bytes or done.watermark_s == NOW_S
    assert not len(rest) or int(rest.seen_s.min()) >= NOW_S - ttl_s
    assert done.watermark_s <= NOW_S
