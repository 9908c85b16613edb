"""Outcomes of a lookup."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.lookup import Match, Miss, match
from s3kv.core.reasons import MissReason

CHAIN = [BlockHash(bytes([block]) * 32) for block in range(12)]


def holding(*blocks: int) -> Callable[[NDArray[np.uint64]], NDArray[np.bool_]]:
    known = fingerprints([CHAIN[block] for block in blocks])
    return lambda fps: np.isin(fps, known)


def spans(found: Match | Miss) -> list[tuple[int, int]]:
    assert isinstance(found, Match)
    return [(chunk.start_block, chunk.end_block) for chunk in found.chunks]


def test_the_match_ends_at_the_first_hole() -> None:
    assert spans(match(holding(3, 11), CHAIN, 4, 1)) == [(0, 4)]


def test_a_missing_first_chunk_with_no_tail_is_a_miss() -> None:
    assert match(holding(7, 11), CHAIN, 4, 1) == Miss(MissReason.ABSENT)


def test_the_longest_tail_after_the_full_chunks_is_taken() -> None:
    assert spans(match(holding(3, 4, 5, 9), CHAIN, 4, 1)) == [(0, 4), (4, 6)]


def test_an_old_prompt_shorter_than_a_chunk_is_found() -> None:
    assert spans(match(holding(1), CHAIN, 4, 1)) == [(0, 2)]


def test_a_tail_behind_the_missing_chunk_is_not_reached() -> None:
    assert spans(match(holding(3, 9), CHAIN, 4, 1)) == [(0, 4)]


def test_a_prompt_below_the_smallest_tail_asks_nothing() -> None:
    def present(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        raise AssertionError("the index was asked")

    assert match(present, CHAIN[:1], 4, 2) == Miss(MissReason.SHORT)
    assert match(present, [], 4, 1) == Miss(MissReason.SHORT)


def test_the_blocks_of_a_match_are_those_before_its_end() -> None:
    found = match(holding(3, 7, 8), CHAIN, 4, 1)

    assert isinstance(found, Match)
    assert found.blocks == 9


def test_a_match_with_a_hole_or_nothing_in_it_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="hole"):
        Match((Chunk(4, 8, CHAIN[7]),))
    with pytest.raises(ValueError, match="at least one"):
        Match(())
