"""Records: examples of the merge law. The law itself is in tests/property."""

from __future__ import annotations

import numpy as np
import pytest

from s3kv.core.records import DEAD, EMPTY, RecordSet, make_records, merge, overlay


def _rows(records: RecordSet) -> list[tuple[int, int, int, int]]:
    columns = (records.fps, records.seen_s, records.blocks, records.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_the_later_use_wins_whatever_the_order() -> None:
    old, new = make_records([7], 10, 16), make_records([7], 11, 3)

    assert _rows(merge([old, new])) == _rows(merge([new, old])) == [(7, 11, 3, 0)]


def test_dead_wins_over_live_in_the_same_second_and_loses_to_a_later_second() -> None:
    dead = make_records([7], 10, 0, DEAD)

    assert _rows(merge([make_records([7], 10, 16), dead])) == [(7, 10, 0, 1)]
    assert _rows(merge([dead, make_records([7], 11, 16)])) == [(7, 11, 16, 0)]


def test_more_blocks_win_between_equal_uses() -> None:
    assert _rows(merge([make_records([7], 10, 3), make_records([7], 10, 16)])) == [(7, 10, 16, 0)]


def test_unknown_flags_decide_last_and_do_not_make_a_record_dead() -> None:
    merged = merge([make_records([7], 10, 16, 0b110), make_records([7], 10, 16, 0b100)])

    assert _rows(merged) == [(7, 10, 16, 0b110)]
    assert merged.live(0).tolist() == [True]


def test_columns_may_come_in_any_order_and_with_repetitions() -> None:
    records = make_records([9, 2**64 - 1, 0, 9], [1, 2, 3, 4], 16)

    assert _rows(records) == [(0, 3, 16, 0), (9, 4, 16, 0), (2**64 - 1, 2, 16, 0)]


def test_values_that_do_not_fit_their_column_are_refused() -> None:
    for seen_s, blocks in [(2**32, 1), (-1, 1), (1, 2**16)]:
        with pytest.raises(OverflowError):
            make_records([1], seen_s, blocks)


def test_a_record_below_the_watermark_is_not_live() -> None:
    records = make_records([1, 2, 3], [9, 10, 11], 16)

    assert records.live(10).tolist() == [False, True, True]


def test_finding_in_an_empty_set_finds_nothing() -> None:
    at, known = EMPTY.find(np.array([1, 2], np.uint64))

    assert known.tolist() == [False, False]
    assert len(at) == 2


def test_an_overlay_replaces_and_inserts_without_touching_the_base() -> None:
    base = make_records([2, 4, 6], [1, 1, 1], 16)

    after = overlay(base, make_records([1, 4, 9], [5, 5, 5], 8))

    assert _rows(after) == [(1, 5, 8, 0), (2, 1, 16, 0), (4, 5, 8, 0), (6, 1, 16, 0), (9, 5, 8, 0)]
    assert _rows(base) == [(2, 1, 16, 0), (4, 1, 16, 0), (6, 1, 16, 0)]


def test_an_overlay_on_nothing_is_the_winners() -> None:
    assert _rows(overlay(EMPTY, make_records([4], 5, 8))) == [(4, 5, 8, 0)]
    assert _rows(overlay(make_records([4], 5, 8), EMPTY)) == [(4, 5, 8, 0)]
