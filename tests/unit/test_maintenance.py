"""Plans over the names in the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s3kv.core.maintenance import (
    MERGE_BYTES_MAX,
    CleanUp,
    Merging,
    Reading,
    Span,
    plan_bridging,
    plan_clean_up,
    plan_cover,
    plan_merging,
    plan_reading,
)
from s3kv.core.requests import Listed

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


# ---------------------------------------------------------------- merging and cleaning up


def test_a_few_loose_ticks_are_left_alone_and_many_become_a_run() -> None:
    ticks = dict.fromkeys(range(1, 9), 10)

    assert plan_merging({}, ticks, ticks_min=9) is None
    assert plan_merging({}, ticks, ticks_min=8) == Merging((), tuple(range(1, 9)))


def test_small_left_neighbours_join_and_large_ones_stay() -> None:
    runs = {(1, 100): 4_000, (101, 110): 300, (111, 120): 90}
    ticks = dict.fromkeys(range(121, 131), 10)

    plan = plan_merging(runs, ticks, ticks_min=10)

    assert plan is not None
    assert plan.runs == ((101, 110), (111, 120))
    assert plan.span == (101, 130)


def test_a_run_is_not_merged_beyond_what_fits_into_memory() -> None:
    half = MERGE_BYTES_MAX // 2 + 1
    plan = plan_merging({(1, 5): half}, {6: half, 7: half, 8: half}, ticks_min=1)

    assert plan == Merging((), (6,))


logs = st.tuples(
    st.dictionaries(
        st.tuples(st.integers(1, 30), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1])),
        st.floats(0, 200),
    ),
    st.integers(0, 60),
)


@given(logs)
def test_nothing_is_cleaned_up_that_a_starter_or_an_old_reader_needs(
    log: tuple[dict[Span, float], int],
) -> None:
    runs, first = log
    ticks = range(first, 61)
    plan = plan_clean_up(runs, ticks, head=60, margin_s=100.0)
    left = set(runs) - set(plan.runs)

    before = plan_reading(0, runs, ticks)
    after = plan_reading(0, left, [tick for tick in ticks if tick not in plan.ticks])
    assert after.has_gap == before.has_gap or not after.has_gap
    old_left = [run for run in left if runs[run] >= 100.0]
    assert plan_cover(old_left)[1] == plan_cover([r for r in runs if runs[r] >= 100.0])[1]
    assert plan_cover(left)[1] == plan_cover(runs)[1]
    assert all(tick <= plan_cover(old_left)[1] and tick != 60 for tick in plan.ticks)


def test_what_a_young_run_repeats_stays() -> None:
    """Somebody may be reading by a listing that does not have the run yet (R7)."""
    plan = plan_clean_up({(1, 5): 200.0, (1, 9): 10.0}, range(1, 11), head=10, margin_s=100.0)

    assert plan == CleanUp((), (1, 2, 3, 4, 5), relies_on=((1, 5),))


def test_a_run_inside_an_old_wider_one_goes() -> None:
    plan = plan_clean_up({(1, 5): 500.0, (1, 9): 200.0}, (9, 10), head=10, margin_s=100.0)

    assert plan == CleanUp(((1, 5),), (9,), relies_on=((1, 9),))


# ---------------------------------------------------------------- holes


def entry(age_s: float) -> Listed:
    return Listed("x", 100, 0.0, age_s)


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda run: (run[0], sum(run))),
        st.sampled_from([10.0, 200.0]).map(entry),
        max_size=4,
    ),
    st.dictionaries(st.integers(1, 40), st.sampled_from([10.0, 200.0]).map(entry), max_size=20),
)
def test_a_bridge_makes_the_log_whole_and_leaves_nothing_out(
    runs: dict[Span, Listed], ticks: dict[int, Listed]
) -> None:
    merging = plan_bridging(runs, ticks, 100.0)
    before = plan_reading(0, runs, ticks)
    if merging is None:
        young = any(found.age_s < 100.0 for found in (*runs.values(), *ticks.values()))
        assert young or not before.has_gap
        return
    after = plan_reading(0, {*runs, merging.span}, ticks)
    newest = max((*ticks, *(hi for _, hi in runs)))
    assert merging.span[1] == newest
    assert not after.has_gap
    read = {*merging.ticks, *(t for lo, hi in merging.runs for t in range(lo, hi + 1))}
    end = plan_cover(runs)[1]
    assert {tick for tick in ticks if tick > end} <= read
    assert {run for run in runs if run[1] > end} <= set(merging.runs) | set(plan_cover(runs)[0])
