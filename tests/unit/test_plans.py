"""Load and save plans at block and chunk edges."""

from __future__ import annotations

import pytest

from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash
from s3kv.core.plans import ChunkPart, plan_load, plan_save, usable_blocks

FIRST = Chunk(0, 4, BlockHash(b"a" * 32))
SECOND = Chunk(4, 8, BlockHash(b"b" * 32))
TAIL = Chunk(8, 10, BlockHash(b"c" * 32))
CHUNKS = (FIRST, SECOND, TAIL)


def test_a_load_takes_parts_of_the_chunks_at_both_ends() -> None:
    assert plan_load(CHUNKS, 3, 9) == (
        ChunkPart(FIRST, 3, 1),
        ChunkPart(SECOND, 4, 4),
        ChunkPart(TAIL, 8, 1),
    )


def test_chunks_that_the_engine_has_already_are_not_fetched() -> None:
    assert plan_load(CHUNKS, 4, 8) == (ChunkPart(SECOND, 4, 4),)
    assert plan_load(CHUNKS, 10, 10) == ()
    assert plan_load((), 0, 0) == ()


@pytest.mark.parametrize("chunks", [(FIRST, TAIL), (SECOND, FIRST), (FIRST, FIRST)])
def test_holes_and_overlaps_are_refused(chunks: tuple[Chunk, ...]) -> None:
    with pytest.raises(ValueError, match="do not join"):
        plan_load(chunks, 0, 8)


@pytest.mark.parametrize(("local", "end"), [(0, 11), (3, 2), (-1, 4)])
def test_ranges_that_the_chunks_cannot_cover_are_refused(local: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"cover|cannot load"):
        plan_load(CHUNKS, local, end)


def test_a_part_outside_its_chunk_cannot_be_made() -> None:
    for first, count in [(3, 1), (4, 5), (8, 1), (5, 0)]:
        with pytest.raises(ValueError, match="not part of chunk"):
            ChunkPart(SECOND, first, count)


@pytest.mark.parametrize(
    ("computed", "final"),
    [(3, range(0)), (4, range(1)), (7, range(1)), (8, range(2)), (9, range(2)), (10, range(3))],
)
def test_a_chunk_is_saved_when_its_last_block_is_computed(computed: int, final: range) -> None:
    assert plan_save(CHUNKS, 0, computed) == final


def test_a_chunk_that_was_planned_is_not_planned_again() -> None:
    assert list(plan_save(CHUNKS, 2, 10)) == [2]
    assert list(plan_save(CHUNKS, 3, 10)) == []
    with pytest.raises(ValueError, match="next_index"):
        plan_save(CHUNKS, 4, 10)


@pytest.mark.parametrize(
    ("tokens", "end"),
    [(47, 2), (48, 2), (49, 3), (63, 3), (64, 3), (65, 4), (66, 4), (1, 0), (0, 0)],
)
def test_a_hit_on_the_whole_prompt_leaves_one_token_to_compute(tokens: int, end: int) -> None:
    assert usable_blocks(4, 0, tokens, 16, None, 0) == end


def test_a_hit_below_the_minimum_is_no_hit() -> None:
    assert usable_blocks(6, 4, 1000, 16, None, 33) == 4
    assert usable_blocks(6, 4, 1000, 16, None, 32) == 6


def test_the_most_tokens_to_load_count_beyond_the_local_ones() -> None:
    assert usable_blocks(10, 4, 1000, 16, 47, 0) == 6
    assert usable_blocks(10, 4, 1000, 16, 48, 0) == 7
    assert usable_blocks(10, 4, 1000, 16, 0, 0) == 4


def test_what_the_engine_has_beyond_the_match_stays() -> None:
    assert usable_blocks(3, 5, 1000, 16, None, 0) == 5
    with pytest.raises(ValueError, match="blocks of 0 tokens"):
        usable_blocks(3, 5, 1000, 0, None, 0)
