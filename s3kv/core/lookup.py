"""The longest archived prefix of a chain, from an index that answers for fingerprints.

Rule upheld here: a match is contiguous from block 0 and ends at the first hole. An index is a
hint: a match promises nothing about the bytes, which are verified when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from s3kv.core.chunking import Chunk, full_chunks, tail_candidates
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.reasons import MissReason


@dataclass(frozen=True, slots=True)
class Match:
    """These chunks, contiguous from block 0, are in the index: full ones, then at most one tail.

    Raises ValueError if there is none, or a hole between them.
    """

    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        """Refuse what is not a prefix."""
        end = 0
        for chunk in self.chunks:
            if chunk.start_block != end:
                raise ValueError(f"hole in a match: blocks [{end}, {chunk.start_block})")
            end = chunk.end_block
        if end == 0:
            raise ValueError("a match has at least one chunk")

    @property
    def blocks(self) -> int:
        """Matched blocks, counted from the start of the chain."""
        return self.chunks[-1].end_block


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing to load, and why."""

    reason: MissReason


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer yet: ask again (until the lookup's deadline makes it a miss)."""


Lookup = Match | Miss | Unknown
"""Every outcome of asking for a prompt's archived prefix."""


def match(
    present: Callable[[NDArray[np.uint64]], NDArray[np.bool_]],
    hashes: Sequence[BlockHash],
    chunk_blocks: int,
    min_tail_blocks: int,
) -> Match | Miss:
    """Longest prefix of full chunks that are present, then the longest tail chunk after it.

    present: uint64[k] fingerprints -> bool[k], called at most twice, never with k = 0. Makes no
    `Chunk` for what missed: this runs on the engine's scheduling thread for every new request.
    """
    names = hashes[chunk_blocks - 1 :: chunk_blocks]
    hit_count = _leading(present(fingerprints(names))) if names else 0
    tails = tail_candidates(hashes, chunk_blocks, hit_count, min_tail_blocks)
    found = full_chunks(hashes[: hit_count * chunk_blocks], chunk_blocks)
    if tails:
        tail_present = present(fingerprints([tail.chunk_hash for tail in tails]))
        if tail_present.any():
            found.append(tails[int(tail_present.argmax())])
    if found:
        return Match(tuple(found))
    return Miss(MissReason.ABSENT if names or tails else MissReason.SHORT)


def _leading(flags: NDArray[np.bool_]) -> int:
    """How many of bool[k] (k >= 1) are true before the first false one."""
    first_false = int(flags.argmin())
    return len(flags) if flags[first_false] else first_false
