"""Chunks at the edges of prompts."""

from __future__ import annotations

import pytest

from s3kv.core.chunking import (
    Chunk,
    block_chain,
    chunk_blocks_for,
    full_chunks,
    prompt_chunks,
    tail_candidates,
)
from s3kv.core.ids import BlockHash


def chain(count: int) -> list[BlockHash]:
    return [BlockHash(bytes([block]) * 32) for block in range(count)]


def spans(chunks: list[Chunk]) -> list[tuple[int, int]]:
    return [(chunk.start_block, chunk.end_block) for chunk in chunks]


@pytest.mark.parametrize(
    ("prompt_blocks", "expected"),
    [
        (0, []),
        (1, []),
        (2, [(0, 2)]),
        (3, [(0, 3)]),
        (4, [(0, 4)]),
        (5, [(0, 4)]),
        (6, [(0, 4), (4, 6)]),
        (8, [(0, 4), (4, 8)]),
    ],
)
def test_a_prompt_is_full_chunks_and_a_tail_that_is_not_too_short(
    prompt_blocks: int, expected: list[tuple[int, int]]
) -> None:
    assert spans(prompt_chunks(chain(9), prompt_blocks, 4, 2)) == expected


def test_a_smallest_tail_of_a_whole_chunk_means_no_tails() -> None:
    assert spans(prompt_chunks(chain(7), 7, 4, 4)) == [(0, 4)]
    assert tail_candidates(chain(7), 4, 1, 4) == []


def test_tails_are_looked_for_longest_first_inside_the_first_missing_chunk_only() -> None:
    assert spans(tail_candidates(chain(12), 4, 1, 1)) == [(4, 7), (4, 6), (4, 5)]
    assert spans(tail_candidates(chain(6), 4, 1, 1)) == [(4, 6), (4, 5)]
    assert tail_candidates(chain(8), 4, 2, 1) == []


def test_a_tail_chunk_is_named_by_its_own_last_block() -> None:
    hashes = chain(6)

    assert prompt_chunks(hashes, 6, 4, 1)[1] == Chunk(4, 6, hashes[5])


def test_blocks_of_several_hashes_are_named_by_the_last_of_them() -> None:
    hashes = chain(7)

    assert block_chain(hashes, 3) == [hashes[2], hashes[5]]
    assert block_chain(hashes, 1) == hashes


def test_hashes_of_an_unstable_algorithm_are_refused_by_their_length() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        block_chain([b"x" * 16], 1)


@pytest.mark.parametrize(
    ("chunk_tokens", "block_tokens", "blocks"), [(256, 16, 16), (256, 100, 3), (1, 16, 1)]
)
def test_chunk_tokens_are_rounded_up_to_whole_blocks(
    chunk_tokens: int, block_tokens: int, blocks: int
) -> None:
    assert chunk_blocks_for(chunk_tokens, block_tokens) == blocks


def test_senseless_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        full_chunks(chain(3), 0)
    with pytest.raises(ValueError, match="at least 1"):
        block_chain(chain(3), 0)
    with pytest.raises(ValueError, match="0 tokens"):
        chunk_blocks_for(0, 16)
    with pytest.raises(ValueError, match="tail after"):
        tail_candidates(chain(3), 2, -1, 1)
    with pytest.raises(ValueError, match="4 blocks, but 3"):
        prompt_chunks(chain(3), 4, 2, 1)
    with pytest.raises(ValueError, match="no such chunk"):
        Chunk(2, 2, chain(1)[0])
