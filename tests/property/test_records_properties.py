"""The merge law, for any records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.core import records
from s3kv.core.records import DEAD, RecordSet, make_records, merge, overlay

Row = tuple[int, int, int, int]

# Few values, so that fingerprints and times collide.
rows = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)),
    max_size=25,
)


def build(given_rows: list[Row]) -> RecordSet:
    columns = list(zip(*given_rows, strict=True)) or [(), (), (), ()]
    return make_records(*columns)


def unbuild(given: RecordSet) -> list[Row]:
    columns = (given.fps, given.seen_s, given.blocks, given.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def model(given_rows: list[Row]) -> list[Row]:
    """The law, said slowly."""

    def rank(row: Row) -> tuple[int, int, int, int]:
        _, seen_s, blocks, flags = row
        return seen_s, flags & int(DEAD), blocks, flags

    best: dict[int, Row] = {}
    for row in given_rows:
        if row[0] not in best or rank(row) > rank(best[row[0]]):
            best[row[0]] = row
    return [best[fp] for fp in sorted(best)]


@given(st.lists(rows, max_size=5))
def test_merging_keeps_the_greatest_record_of_each_fingerprint(sets: list[list[Row]]) -> None:
    merged = merge([build(part) for part in sets])

    assert unbuild(merged) == model([row for part in sets for row in part])


@given(rows, st.lists(rows, max_size=3))
def test_a_large_set_and_a_few_small_ones_are_merged_by_the_same_law(
    large: list[Row], small: list[list[Row]]
) -> None:
    parts = [*small, large]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "OVERLAY_MIN", 0)
        patch.setattr(records, "OVERLAY_RATIO", 1)
        merged = merge([build(part) for part in parts])

    assert unbuild(merged) == model([row for part in parts for row in part])


@given(st.lists(rows, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_merging_is_commutative_associative_and_idempotent(
    sets: list[list[Row]], rng: random.Random
) -> None:
    parts = [build(part) for part in sets]
    merged = unbuild(merge(parts))
    shuffled = parts * 2
    rng.shuffle(shuffled)
    cut = rng.randrange(len(shuffled) + 1)

    assert unbuild(merge(shuffled)) == merged
    assert unbuild(merge([merge(shuffled[:cut]), merge(shuffled[cut:])])) == merged
    assert unbuild(merge([merge(parts), *parts])) == merged


@given(rows, rows)
def test_an_overlay_of_winners_equals_a_merge(base_rows: list[Row], news: list[Row]) -> None:
    base = build(base_rows)
    at, known = base.find(build(news).fps)
    winners = merge([build(news), base.take(at[known])])

    assert unbuild(overlay(base, winners)) == unbuild(merge([base, build(news)]))


@given(rows, st.lists(st.integers(0, 15), max_size=20), st.integers(0, 4))
def test_finding_equals_looking_through_all(
    given_rows: list[Row], wanted: list[int], watermark_s: int
) -> None:
    records = build(given_rows)
    wanted_fps = make_records(wanted, 0, 0).fps

    at, known = records.find(wanted_fps)

    held = {row[0] for row in model(given_rows)}
    assert known.tolist() == [fp in held for fp in wanted_fps.tolist()]
    assert (records.fps[at[known]] == wanted_fps[known]).all()
    assert records.live(watermark_s).tolist() == [
        not row[3] & 1 and row[1] >= watermark_s for row in model(given_rows)
    ]
