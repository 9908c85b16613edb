"""The lookup against a naive walk along the chain, for any set of archived chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from s3kv.core.chunking import prompt_chunks
from s3kv.core.ids import BlockHash, fingerprint
from s3kv.core.lookup import Match, Miss, match
from s3kv.core.reasons import MissReason
from tests.property.strategies import chain_of, chains


def index_of(hashes: set[bytes]) -> Callable[[NDArray[np.uint64]], NDArray[np.bool_]]:
    """An index that holds the fingerprints of these hashes; refuses to be asked for nothing."""
    known = {fingerprint(h) for h in hashes}

    def present(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        assert fps.dtype == np.uint64
        assert len(fps) > 0
        return np.array([int(fp) in known for fp in fps])

    return present


def naive_end(archived: set[bytes], chain: list[BlockHash], size: int, min_tail: int) -> int:
    """End block of the match: whole chunks while they are there, then the longest tail."""
    end = 0
    while end + size <= len(chain) and chain[end + size - 1] in archived:
        end += size
    for length in range(size - 1, 0, -1):
        if (
            length >= min_tail
            and end + length <= len(chain)
            and chain[end + length - 1] in archived
        ):
            return end + length
    return end


@settings(deadline=None)
@given(chains(), st.data(), st.integers(1, 6), st.integers(0, 6))
def test_match_is_the_naive_longest_prefix(
    chain: list[BlockHash], data: st.DataObject, size: int, min_tail: int
) -> None:
    archived: set[bytes] = set(data.draw(st.lists(st.sampled_from(chain)))) if chain else set()

    found = match(index_of(archived), chain, size, min_tail)

    expected = naive_end(archived, chain, size, min_tail)
    if isinstance(found, Match):
        assert found.blocks == expected
        assert all(chunk.chunk_hash in archived for chunk in found.chunks)
        assert all(c.chunk_hash == chain[c.end_block - 1] for c in found.chunks)
        assert [c.block_count for c in found.chunks[:-1]] == [size] * (len(found.chunks) - 1)
    else:
        assert expected == 0


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 6), st.integers(0, 3))
def test_a_longer_prompt_finds_all_that_an_earlier_prompt_saved(
    earlier: int, grown_by: int, size: int, min_tail: int
) -> None:
    chain = chain_of(range(earlier + grown_by))
    saved = prompt_chunks(chain, earlier, size, min_tail)

    found = match(index_of({c.chunk_hash for c in saved}), chain, size, min_tail)

    assert (found.chunks if isinstance(found, Match) else ()) == tuple(saved)


@settings(deadline=None)
@given(chains(), st.integers(1, 6), st.integers(0, 6))
def test_a_miss_says_whether_there_was_anything_to_look_for(
    chain: list[BlockHash], size: int, min_tail: int
) -> None:
    found = match(index_of(set()), chain, size, min_tail)

    smallest = min(size, max(1, min_tail))
    assert found == Miss(MissReason.ABSENT if len(chain) >= smallest else MissReason.SHORT)
