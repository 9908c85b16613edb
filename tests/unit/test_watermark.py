"""The watermark: age, capacity, and that it only rises."""

from __future__ import annotations

import random

import numpy as np
import pytest

from s3kv.core.records import make_records
from s3kv.core.snapshot import Snapshot
from s3kv.core.watermark import watermark_for, would_die


def snapshot_of(uses: list[tuple[int, int]], watermark_s: int = 0) -> Snapshot:
    """uses: (seen_s, blocks) of chunks 0, 1, 2, ..."""
    seen_s, blocks = [use[0] for use in uses], [use[1] for use in uses]
    records = make_records(np.arange(len(uses), dtype=np.uint64), seen_s, blocks)
    return Snapshot(watermark_s=watermark_s).absorb(records)


def test_without_limits_it_stays_where_it_was() -> None:
    assert watermark_for(snapshot_of([(5, 16)], 3), 1_000.0, None, None, 10) == 3


def test_age_forgets_what_was_not_used_for_the_time_to_live() -> None:
    watermark_s = watermark_for(snapshot_of([(899, 16), (900, 16)]), 1_000.9, 100, None, 10)

    assert watermark_s == 900


def test_it_never_falls_and_never_passes_now() -> None:
    assert watermark_for(snapshot_of([(900, 16)], 950), 1_000.0, 100, None, 10) == 950
    assert watermark_for(snapshot_of([(9_000, 16)]), 1_000.0, None, 1, 10) == 1_000
    assert watermark_for(snapshot_of([(9_000, 16)], 2_000), 1_000.0, 5, 1, 10) == 2_000


def test_capacity_forgets_the_longest_unused_until_the_rest_fits() -> None:
    snapshot = snapshot_of([(100, 16), (300, 16), (200, 16), (400, 8)])

    for max_bytes, expected in [(560, 0), (559, 101), (400, 101), (399, 201), (80, 301), (79, 401)]:
        assert watermark_for(snapshot, 1_000.0, None, max_bytes, 10) == expected


def test_capacity_counts_only_what_is_live() -> None:
    snapshot = snapshot_of([(100, 16), (200, 16)], watermark_s=150)

    assert watermark_for(snapshot, 1_000.0, None, 160, 10) == 150


@pytest.mark.parametrize("seed", range(20))
def test_capacity_is_exact_to_the_second_over_long_times(seed: int) -> None:
    rng = random.Random(seed)
    span = rng.choice([3, 5_000, 30_000_000, 2**31])
    uses = [(1 + rng.randrange(span), rng.randrange(1, 17)) for _ in range(500)]
    max_bytes = rng.randrange(1, sum(blocks for _, blocks in uses))

    watermark_s = watermark_for(snapshot_of(uses), float(2**32), None, max_bytes, 1)

    def kept(limit_s: int) -> int:
        return sum(blocks for seen_s, blocks in uses if seen_s >= limit_s)

    assert kept(watermark_s) <= max_bytes < kept(watermark_s - 1)


def test_the_stricter_of_both_limits_counts() -> None:
    snapshot = snapshot_of([(100, 16), (900, 16)])

    assert watermark_for(snapshot, 1_000.0, 50, 160, 10) == 950
    assert watermark_for(snapshot, 1_000.0, 800, 160, 10) == 200


def test_raising_it_matters_only_if_something_dies() -> None:
    snapshot = snapshot_of([(100, 16), (200, 16)], watermark_s=50)

    assert not would_die(snapshot, 100)
    assert would_die(snapshot, 101)
