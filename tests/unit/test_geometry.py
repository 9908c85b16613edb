"""Offsets of shards; their agreement with real files is tested in test_shard_format."""

from __future__ import annotations

import pytest

from s3kv.core.geometry import MAX_HEADER_BYTES, GroupGeometry, ShardGeometry

ATTENTION = GroupGeometry("attention", 3, 100)
STATE = GroupGeometry("state", 2, 7)
BOTH = ShardGeometry((ATTENTION, STATE), 4)


def test_groups_follow_each_other_block_major() -> None:
    header = BOTH.header_bytes

    assert BOTH.group_range(0, 4, 0, 4) == (header, 1200)
    assert BOTH.group_range(0, 4, 2, 1) == (header + 600, 300)
    assert BOTH.group_range(1, 4, 0, 4) == (header + 1200, 56)
    assert BOTH.group_range(1, 4, 3, 1) == (header + 1242, 14)


def test_a_tail_moves_later_groups_forward_but_not_the_header() -> None:
    assert BOTH.group_range(1, 1, 0, 1) == (BOTH.header_bytes + 300, 14)
    assert BOTH.shard_bytes(1) == BOTH.header_bytes + 314
    assert BOTH.slot_bytes == BOTH.shard_bytes(4) == BOTH.header_bytes + 1256


@pytest.mark.parametrize(
    ("groups", "chunk_blocks", "header_bytes"),
    [(1, 1, 4096), (1, 16, 4096), (1, 33, 4096), (1, 34, 8192), (64, 4096, MAX_HEADER_BYTES)],
)
def test_header_length_follows_the_documented_formula(
    groups: int, chunk_blocks: int, header_bytes: int
) -> None:
    need = 1024 + 160 * groups + chunk_blocks * (64 + 24 * groups)
    assert header_bytes == -(-need // 4096) * 4096

    geometry = ShardGeometry((STATE,) * groups, chunk_blocks)

    assert geometry.header_bytes == header_bytes


@pytest.mark.parametrize(
    ("group", "block_count", "first", "count"),
    [
        (2, 4, 0, 1),
        (-1, 4, 0, 1),
        (0, 0, 0, 1),
        (0, 5, 0, 1),
        (0, 4, -1, 1),
        (0, 4, 0, 0),
        (0, 4, 3, 2),
        (0, 2, 2, 1),
    ],
)
def test_ranges_of_blocks_that_are_not_there_are_refused(
    group: int, block_count: int, first: int, count: int
) -> None:
    with pytest.raises(ValueError, match=r"group|blocks"):
        BOTH.group_range(group, block_count, first, count)


def test_shapes_beyond_the_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="0 groups"):
        ShardGeometry((), 4)
    with pytest.raises(ValueError, match="65 groups"):
        ShardGeometry((STATE,) * 65, 4)
    with pytest.raises(ValueError, match="blocks in a chunk"):
        ShardGeometry((STATE,), 4097)
    with pytest.raises(ValueError, match="bytes, not <="):
        ShardGeometry((GroupGeometry("huge", 1, 1 << 40),), 1)
    with pytest.raises(ValueError, match="group empty"):
        GroupGeometry("empty", 0, 1)
