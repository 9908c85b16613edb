"""Chunks: consecutive blocks at fixed positions of a chain, named by their last block's hash.

Rule upheld here: a chunk's place and name follow from the chain alone. Two prompts with a common
prefix therefore name their common chunks alike, whatever comes after. `hashes` is always the chain
at scheduler-block granularity (one 32-byte hash per block, each committing to all blocks before
it); `block_chain` makes it from the engine's finer one. Whether a chunk exists is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from s3kv.core.ids import HASH_BYTES, BlockHash


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks [start_block, end_block) of a chain, named by the hash of its last block.

    Raises ValueError for an empty or negative range: such a chunk has no last block.
    """

    start_block: int
    end_block: int
    chunk_hash: BlockHash

    def __post_init__(self) -> None:
        """Refuse ranges that no chain has."""
        if not 0 <= self.start_block < self.end_block:
            raise ValueError(f"no such chunk: blocks [{self.start_block}, {self.end_block})")

    @property
    def block_count(self) -> int:
        """Blocks in this chunk, at least 1."""
        return self.end_block - self.start_block


def block_chain(block_hashes: Sequence[bytes], hashes_per_block: int) -> list[BlockHash]:
    """Every `hashes_per_block`-th hash: the hash at the end of each whole scheduler block.

    block_hashes: the engine's chain, one hash per `hash_block_size` tokens; hashes beyond the last
    whole scheduler block are left out. Raises ValueError if a hash is not 32 bytes long (an
    algorithm that `check_hash_algorithm` refuses) or hashes_per_block is below 1.
    """
    if hashes_per_block < 1:
        raise ValueError(f"hashes_per_block must be at least 1, not {hashes_per_block}")
    chain = [BlockHash(h) for h in block_hashes[hashes_per_block - 1 :: hashes_per_block]]
    if any(len(h) != HASH_BYTES for h in chain):
        raise ValueError(f"a block hash is not {HASH_BYTES} bytes long")
    return chain


def chunk_blocks_for(chunk_tokens: int, block_tokens: int) -> int:
    """Blocks that hold at least `chunk_tokens` tokens: rounded up to whole blocks.

    Raises ValueError if either is below 1.
    """
    if chunk_tokens < 1 or block_tokens < 1:
        raise ValueError(f"chunk of {chunk_tokens} tokens in blocks of {block_tokens} tokens")
    return -(-chunk_tokens // block_tokens)


def full_chunks(hashes: Sequence[BlockHash], chunk_blocks: int) -> list[Chunk]:
    """All full chunks of a chain in order; the last len(hashes) % chunk_blocks blocks have none."""
    if chunk_blocks < 1:
        raise ValueError(f"chunk_blocks must be at least 1, not {chunk_blocks}")
    return [
        Chunk(end - chunk_blocks, end, hashes[end - 1])
        for end in range(chunk_blocks, len(hashes) + 1, chunk_blocks)
    ]


def prompt_chunks(
    hashes: Sequence[BlockHash], prompt_blocks: int, chunk_blocks: int, min_tail_blocks: int
) -> list[Chunk]:
    """What a prompt of `prompt_blocks` full blocks consists of: full chunks, then its own tail.

    The tail chunk is the rest, if it has at least max(1, min_tail_blocks) blocks; with
    min_tail_blocks >= chunk_blocks there are no tails. The chunks are contiguous from block 0.
    hashes may go on past the prompt. Raises ValueError if they end before it.
    """
    if not 0 <= prompt_blocks <= len(hashes):
        raise ValueError(f"prompt of {prompt_blocks} blocks, but {len(hashes)} block hashes")
    chunks = full_chunks(hashes[:prompt_blocks], chunk_blocks)
    start = chunks[-1].end_block if chunks else 0
    if prompt_blocks - start >= max(1, min_tail_blocks):
        chunks.append(Chunk(start, prompt_blocks, hashes[prompt_blocks - 1]))
    return chunks


def tail_candidates(
    hashes: Sequence[BlockHash], chunk_blocks: int, full_hit_count: int, min_tail_blocks: int
) -> list[Chunk]:
    """Names under which a tail chunk after `full_hit_count` full chunks may lie, longest first.

    One for every block boundary inside the first full chunk that missed, because some earlier,
    shorter prompt may have ended at any of them: that is how a grown conversation finds its old
    tail. At most chunk_blocks - 1 candidates, none shorter than max(1, min_tail_blocks).
    """
    if chunk_blocks < 1 or full_hit_count < 0:
        raise ValueError(f"tail after {full_hit_count} chunks of {chunk_blocks} blocks")
    start = full_hit_count * chunk_blocks
    longest = min(start + chunk_blocks - 1, len(hashes))
    shortest = start + max(1, min_tail_blocks)
    return [Chunk(start, end, hashes[end - 1]) for end in range(longest, shortest - 1, -1)]
