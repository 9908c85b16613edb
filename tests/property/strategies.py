"""Hypothesis strategies shared by the property tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import strategies as st

from s3kv.core.chunking import Chunk
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.shard import ShardIdentity


def chain_of(tokens: Sequence[int], salt: bytes = b"") -> list[BlockHash]:
    """A chain as an engine makes it: each hash commits to its token and to all before it."""
    parent, chain = hashlib.sha256(salt).digest(), []
    for token in tokens:
        parent = hashlib.sha256(parent + token.to_bytes(8, "big")).digest()
        chain.append(BlockHash(parent))
    return chain


def chains(min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[list[BlockHash]]:
    """Chains of block hashes; few different tokens, so that prefixes are often shared."""
    return st.lists(st.integers(0, 2), min_size=min_size, max_size=max_size).map(chain_of)


def block_hashes() -> st.SearchStrategy[BlockHash]:
    """Any 32 bytes."""
    return st.binary(min_size=32, max_size=32).map(BlockHash)


def namespace_ids() -> st.SearchStrategy[NamespaceId]:
    """Any 32 hex digits."""
    return st.binary(min_size=16, max_size=16).map(lambda raw: NamespaceId(raw.hex()))


@st.composite
def contiguous_chunks(draw: st.DrawFn, max_count: int = 6, max_blocks: int = 5) -> list[Chunk]:
    """Chunks of different sizes that join, from some block on."""
    start = draw(st.integers(0, 10))
    sizes = draw(st.lists(st.integers(1, max_blocks), max_size=max_count))
    chain = chain_of(range(start + sum(sizes)))
    chunks = []
    for size in sizes:
        chunks.append(Chunk(start, start + size, chain[start + size - 1]))
        start += size
    return chunks


@st.composite
def geometries(draw: st.DrawFn, max_groups: int = 3, max_blocks: int = 5) -> ShardGeometry:
    """Small geometries with one to `max_groups` groups of different page sizes."""
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=max_groups)
    )
    groups = tuple(GroupGeometry(f"group{i}", *size) for i, size in enumerate(sizes))
    return ShardGeometry(groups, draw(st.integers(1, max_blocks)))


@st.composite
def identities(draw: st.DrawFn, geometry: ShardGeometry) -> ShardIdentity:
    """Identities of full and tail chunks that fit the geometry."""
    count = draw(st.integers(1, geometry.chunk_blocks))
    hashes = tuple(draw(st.lists(block_hashes(), min_size=count, max_size=count)))
    writers = draw(st.integers(1, 999))
    return ShardIdentity(
        draw(namespace_ids()),
        hashes[-1],
        draw(block_hashes()),
        hashes,
        draw(st.integers(0, writers - 1)),
        writers,
    )
