"""Which blocks to load and which chunks to save, decided from plain values.

Rule upheld here: a load plan covers its range exactly once and never crosses a hole; a save plan
names only chunks whose last block is computed. Moving the bytes is somebody else's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from s3kv.core.chunking import Chunk


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Blocks [first_block, first_block + block_count) of the *chain*, all inside one chunk.

    Raises ValueError if the part is empty or reaches outside its chunk.
    """

    chunk: Chunk
    first_block: int
    block_count: int

    def __post_init__(self) -> None:
        """Refuse parts that reach outside their chunk: their bytes would be a neighbour's."""
        inside = self.chunk.start_block <= self.first_block < self.end_block
        if not inside or self.end_block > self.chunk.end_block:
            raise ValueError(
                f"blocks [{self.first_block}, {self.end_block}) are not part of chunk "
                f"[{self.chunk.start_block}, {self.chunk.end_block})"
            )

    @property
    def end_block(self) -> int:
        """First block of the chain after this part."""
        return self.first_block + self.block_count

    @property
    def first_block_in_chunk(self) -> int:
        """Where the part begins inside its chunk, as `ShardGeometry.group_range` counts."""
        return self.first_block - self.chunk.start_block


def plan_load(chunks: Sequence[Chunk], local_blocks: int, end_block: int) -> tuple[ChunkPart, ...]:
    """Cover the blocks [local_blocks, end_block) of a chain with parts of `chunks`, in order.

    local_blocks: what the engine has already; end_block: see `usable_blocks`. Chunks that touch no
    block of the range are left out; an empty range needs no part. Raises ValueError if the chunks
    leave a hole, overlap or are out of order, or do not reach over the whole range.
    """
    if not 0 <= local_blocks <= end_block:
        raise ValueError(f"cannot load blocks [{local_blocks}, {end_block})")
    for before, after in pairwise(chunks):
        if before.end_block != after.start_block:
            raise ValueError(
                f"chunks do not join: one ends at block {before.end_block}, "
                f"the next starts at {after.start_block}"
            )
    parts = []
    for chunk in chunks:
        first = max(chunk.start_block, local_blocks)
        end = min(chunk.end_block, end_block)
        if first < end:
            parts.append(ChunkPart(chunk, first, end - first))
    if sum(part.block_count for part in parts) != end_block - local_blocks:
        raise ValueError(f"chunks do not cover blocks [{local_blocks}, {end_block})")
    return tuple(parts)


def plan_save(chunks: Sequence[Chunk], next_index: int, computed_blocks: int) -> range:
    """Indices of the chunks that are final now, from `next_index` on.

    chunks: in chain order; next_index: the first one not planned yet, to be set to the returned
    range's stop; computed_blocks: blocks of the chain whose KV is complete after this step. A
    chunk is final when its last block is. Raises ValueError if next_index is no index of a chunk
    or the end.
    """
    if not 0 <= next_index <= len(chunks):
        raise ValueError(f"next_index {next_index} of {len(chunks)} chunks")
    stop = next_index
    while stop < len(chunks) and chunks[stop].end_block <= computed_blocks:
        stop += 1
    return range(next_index, stop)


def usable_blocks(
    matched_blocks: int,
    local_blocks: int,
    token_count: int,
    block_tokens: int,
    max_load_tokens: int | None,
    min_load_tokens: int,
) -> int:
    """End block of the hit that may be offered to the engine; `local_blocks` when there is none.

    matched_blocks: end of the match in the archive; local_blocks: full blocks the engine already
    has; token_count: tokens of the request. The engine must compute at least one token itself to
    have logits, so the hit ends at the last block boundary below token_count. max_load_tokens:
    most tokens to load beyond the local ones, rounded down to blocks (None: no limit);
    min_load_tokens: a smaller hit is not worth a fetch and counts as none.
    """
    if block_tokens < 1 or matched_blocks < 0 or local_blocks < 0:
        raise ValueError(
            f"{matched_blocks} matched and {local_blocks} local blocks of {block_tokens} tokens"
        )
    end = min(matched_blocks, max(0, token_count - 1) // block_tokens)
    if max_load_tokens is not None:
        end = min(end, local_blocks + max(0, max_load_tokens) // block_tokens)
    if end <= local_blocks or (end - local_blocks) * block_tokens < min_load_tokens:
        return local_blocks
    return end
