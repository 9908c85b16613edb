"""Promises of load and save plans, for any chunks and any local prefix."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from s3kv.core.chunking import Chunk, prompt_chunks
from s3kv.core.plans import plan_load, plan_save, usable_blocks
from tests.property.strategies import chain_of, contiguous_chunks


def _edges(chunks: list[Chunk]) -> tuple[int, int]:
    return (chunks[0].start_block, chunks[-1].end_block) if chunks else (0, 0)


@settings(deadline=None)
@given(contiguous_chunks(), st.data())
def test_a_load_plan_covers_each_block_once_and_inside_its_chunk(
    chunks: list[Chunk], data: st.DataObject
) -> None:
    low, high = _edges(chunks)
    local = data.draw(st.integers(low, high))
    end = data.draw(st.integers(local, high))

    parts = plan_load(chunks, local, end)

    blocks = [b for p in parts for b in range(p.first_block, p.end_block)]
    assert blocks == list(range(local, end))
    for part in parts:
        assert part.chunk in chunks
        assert part.chunk.start_block <= part.first_block < part.end_block <= part.chunk.end_block
        assert part.first_block_in_chunk == part.first_block - part.chunk.start_block


@settings(deadline=None)
@given(contiguous_chunks(), st.data())
def test_a_load_plan_names_no_chunk_it_takes_nothing_from(
    chunks: list[Chunk], data: st.DataObject
) -> None:
    low, high = _edges(chunks)
    local = data.draw(st.integers(low, high))
    end = data.draw(st.integers(local, high))

    named = [part.chunk for part in plan_load(chunks, local, end)]

    wanted = set(range(local, end))
    assert named == [c for c in chunks if wanted & set(range(c.start_block, c.end_block))]


@settings(deadline=None)
@given(contiguous_chunks(), st.data())
def test_a_load_plan_never_crosses_a_hole(chunks: list[Chunk], data: st.DataObject) -> None:
    assume(len(chunks) >= 3)
    missing = data.draw(st.integers(1, len(chunks) - 2))
    low, high = _edges(chunks)

    with pytest.raises(ValueError, match="do not join"):
        plan_load(chunks[:missing] + chunks[missing + 1 :], low, high)


@settings(deadline=None)
@given(contiguous_chunks(), st.data())
def test_a_load_plan_never_takes_a_block_twice(chunks: list[Chunk], data: st.DataObject) -> None:
    assume(chunks)
    doubled = data.draw(st.integers(0, len(chunks) - 1))
    low, high = _edges(chunks)

    with pytest.raises(ValueError, match="do not join"):
        plan_load(chunks[: doubled + 1] + chunks[doubled:], low, high)


@settings(deadline=None)
@given(contiguous_chunks(), st.integers(0, 3), st.integers(0, 3))
def test_a_load_plan_refuses_what_its_chunks_do_not_reach(
    chunks: list[Chunk], before: int, after: int
) -> None:
    low, high = _edges(chunks)
    assume(before + after > 0 and before <= low)

    with pytest.raises(ValueError, match="do not cover"):
        plan_load(chunks, low - before, high + after)


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 6),
    st.integers(0, 6),
    st.lists(st.integers(0, 5), max_size=9),
)
def test_saving_step_by_step_saves_every_final_chunk_once_and_none_early(
    prompt: int, chunk_blocks: int, min_tail: int, steps: list[int]
) -> None:
    chunks = prompt_chunks(chain_of(range(prompt)), prompt, chunk_blocks, min_tail)
    next_index, computed, saved = 0, 0, list[int]()

    for step in steps:
        computed += step
        indices = plan_save(chunks, next_index, computed)
        saved += indices
        next_index = indices.stop

    assert saved == [i for i, chunk in enumerate(chunks) if chunk.end_block <= computed]


@settings(deadline=None)
@given(
    matched=st.integers(0, 30),
    local=st.integers(0, 30),
    tokens=st.integers(0, 200),
    block_tokens=st.integers(1, 8),
    most=st.none() | st.integers(0, 200),
    least=st.integers(0, 50),
)
def test_a_usable_hit_is_the_longest_that_keeps_all_limits(
    matched: int, local: int, tokens: int, block_tokens: int, most: int | None, least: int
) -> None:
    allowed = [
        end
        for end in range(local + 1, matched + 1)
        if end * block_tokens < tokens
        and (most is None or (end - local) * block_tokens <= most)
        and (end - local) * block_tokens >= least
    ]

    end = usable_blocks(matched, local, tokens, block_tokens, most, least)

    assert end == max(allowed, default=local)


@settings(deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(-1, 1), st.integers(0, 3)
)
def test_around_every_edge_at_least_one_token_is_left_to_compute(
    block_tokens: int, chunk_blocks: int, chunk_count: int, beside: int, extra_blocks: int
) -> None:
    matched = chunk_blocks * chunk_count
    tokens = (matched + extra_blocks) * block_tokens + beside

    end = usable_blocks(matched, 0, tokens, block_tokens, None, 0)

    assert end <= matched
    assert end == 0 or tokens - end * block_tokens >= 1
    assert end == matched or tokens - (end + 1) * block_tokens < 1
