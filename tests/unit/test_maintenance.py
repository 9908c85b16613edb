"""Plans over the names in the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s3kv.core.maintenance import Reading, Span, plan_cover, plan_reading

spans = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1]))
)


@given(spans)
def test_a_cover_has_no_gap_and_reaches_as_far_as_any(runs: list[Span]) -> None:
    cover, end = plan_cover(runs)

    covered = {tick for lo, hi in cover for tick in range(lo, hi + 1)}
    assert set(range(1, end + 1)) <= covered
    assert not any(lo <= end + 1 and hi > end for lo, hi in runs)
    assert set(cover) <= set(runs)


def test_a_cover_prefers_the_widest_runs() -> None:
    assert plan_cover([(1, 10), (11, 20), (1, 20), (15, 30)]) == ([(1, 20), (15, 30)], 30)


def test_a_starter_reads_runs_first_and_only_the_ticks_beyond() -> None:
    reading = plan_reading(0, [(1, 5), (6, 8)], range(1, 11))

    assert reading == Reading(((1, 5), (6, 8)), (9, 10), has_gap=False)


def test_one_who_comes_back_reads_only_ticks_while_no_run_goes_beyond_its_head() -> None:
    assert plan_reading(6, [(1, 6)], range(5, 11)) == Reading((), (7, 8, 9, 10), has_gap=False)


def test_one_who_comes_back_takes_a_run_rather_than_ticks_that_may_have_been_made_anew() -> None:
    assert plan_reading(6, [(1, 8)], range(5, 11)) == Reading(((1, 8),), (9, 10), has_gap=False)


def test_one_who_comes_back_reads_the_run_that_holds_the_ticks_it_lacks() -> None:
    assert plan_reading(6, [(1, 5), (6, 8)], [9, 10]) == Reading(((6, 8),), (9, 10), has_gap=False)


def test_at_the_head_there_is_nothing_to_read() -> None:
    assert plan_reading(10, [(1, 8)], [9, 10]) == Reading((), (), has_gap=False)
    assert plan_reading(0, [], []) == Reading((), (), has_gap=False)


def test_with_a_gap_everything_beyond_is_read() -> None:
    assert plan_reading(0, [(1, 3), (6, 8)], [5, 9]) == Reading(((1, 3), (6, 8)), (5, 9), True)
