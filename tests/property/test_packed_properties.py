"""Packed records are the same records, whatever their values and however they are merged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.core import packed
from s3kv.core.packed import PackedRecords, look_up, pack
from s3kv.core.records import DEAD, RecordSet, make_records, overlay

U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1

Row = tuple[int, int, int, int]

FEW = st.integers(0, 40)
FPS = FEW | st.integers(0, U64) | st.sampled_from([0, U64, U64 - 1])
ROWS = st.lists(
    st.tuples(
        FPS,
        st.integers(0, 3) | st.integers(0, U32),
        st.sampled_from([16, 16, 16, 3]) | st.integers(0, U16),
        st.sampled_from([0, 0, 0, 1]) | st.integers(0, U16),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Edges of blocks and rows everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK", 3)
        patch.setattr(packed, "ROW", 4)
        yield


def build(rows: list[Row]) -> RecordSet:
    fps, seen_s, blocks, flags = zip(*rows, strict=True) if rows else ((), (), (), ())
    return make_records(fps, seen_s, blocks, flags)


def unbuild(records: RecordSet) -> list[Row]:
    columns = (records.fps, records.seen_s, records.blocks, records.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check(made: PackedRecords, expected: RecordSet) -> None:
    """The same records, in every way of asking."""
    assert unbuild(made.whole()) == unbuild(expected)
    assert len(made) == len(expected)
    assert made.fps.tolist() == expected.fps.tolist()
    at = np.arange(len(expected))[::2]
    assert unbuild(made.take(at)) == unbuild(expected.take(at))
    assert made.odd_at.tolist() == sorted(set(made.odd_at.tolist()))


@given(ROWS)
def test_packing_loses_nothing(rows: list[Row]) -> None:
    records = build(rows)

    check(pack(records), records)


@given(ROWS, ROWS)
def test_an_overlay_is_that_of_the_records(base_rows: list[Row], rows: list[Row]) -> None:
    base, winners = build(base_rows), build(rows)
    before = pack(base)

    check(before.overlaid(winners), overlay(base, winners))
    check(before, base)


@given(ROWS, ROWS, st.integers(0, U32) | st.integers(0, 4))
def test_what_lies_below_the_watermark_goes_and_nothing_else(
    base_rows: list[Row], rows: list[Row], watermark_s: int
) -> None:
    expected = overlay(build(base_rows), build(rows))
    made = pack(build(base_rows)).overlaid(build(rows))

    check(made.since(watermark_s), expected.take(expected.seen_s >= watermark_s))


@given(ROWS, st.lists(FPS, max_size=20))
def test_a_look_up_finds_what_a_dictionary_would(rows: list[Row], wanted: list[int]) -> None:
    records = build(rows)
    known = {row[0]: row for row in unbuild(records)}
    expected = [known.get(fp, (fp, 0, 0, 0)) for fp in wanted]
    fps = np.array(wanted, np.uint64)

    for source in (records, pack(records)):
        there, alive = source.present(fps, 2)
        assert there.tolist() == [fp in known for fp in wanted]
        assert alive.tolist() == [
            fp in known and row[1] >= 2 and not row[3] & DEAD
            for fp, row in zip(wanted, expected, strict=True)
        ]
    for found in (look_up(records, fps), pack(records).look_up(fps)):
        assert found.known.tolist() == [fp in known for fp in wanted]
        columns = (found.seen_s.tolist(), found.blocks.tolist(), found.flags.tolist())
        assert list(zip(*columns, strict=True)) == [row[1:] for row in expected]


@given(ROWS, st.lists(FPS, min_size=1, max_size=20))
def test_many_fingerprints_are_found_as_a_few_are(rows: list[Row], wanted: list[int]) -> None:
    made, fps = pack(build(rows)), np.array(wanted, np.uint64)
    by_rows = made.find(fps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "ROWS_MAX", 0)
        one_by_one = made.find(fps)

    assert by_rows[1].tolist() == one_by_one[1].tolist()
    assert by_rows[0][by_rows[1]].tolist() == one_by_one[0][one_by_one[1]].tolist()


def test_records_take_twelve_bytes_each_and_an_eighth_for_finding_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 64_000
    records = make_records(np.arange(count, dtype=np.uint64) << np.uint64(40), 5, 16)

    monkeypatch.setattr(packed, "ROW", 64)

    assert pack(records).nbytes == 12 * count + count // 8


def test_the_usual_count_of_blocks_is_found_again_when_another_becomes_usual() -> None:
    tails = pack(make_records(range(10), 5, 3))
    made = tails.overlaid(make_records(range(100, 1_100), 5, 16))

    assert (made.usual_blocks, len(made.odd_at)) == (16, 10)

    young_tails = made.overlaid(make_records(range(10), 9, 3)).since(9)
    assert (young_tails.usual_blocks, len(young_tails.odd_at)) == (3, 0)
