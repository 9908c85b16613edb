"""Sealed shards of a few geometries, with the data of the golden vectors."""

from __future__ import annotations

import hashlib

import numpy as np

from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash
from s3kv.core.shard import (
    ShardIdentity,
    seal,
)
from tests.fakes.index_store import NS

NONCE = bytes(range(16))


def hashes(count: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(hashlib.sha256(b"block %d" % i).digest()) for i in range(count))


def identity_of(count: int, writer: int = 0, writers: int = 1) -> ShardIdentity:
    names = hashes(count)
    return ShardIdentity(NS, names[-1], ZERO_HASH, names, writer, writers)


def pattern(size: int) -> bytes:
    """The data of the golden vectors: byte i is (131 * i + 7) mod 251."""
    return ((131 * np.arange(size, dtype=np.uint64) + 7) % 251).astype(np.uint8).tobytes()


def sealed(geometry: ShardGeometry, identity: ShardIdentity) -> bytes:
    slot = memoryview(bytearray(geometry.slot_bytes))
    size = geometry.shard_bytes(identity.block_count) - geometry.header_bytes
    slot[geometry.header_bytes : geometry.header_bytes + size] = pattern(size)
    return bytes(seal(slot, geometry, identity, NONCE))


ONE = ShardGeometry((GroupGeometry("full", 2, 24),), 4)
TWO = ShardGeometry((GroupGeometry("full", 2, 24), GroupGeometry("window", 3, 5)), 4)
MANY = ShardGeometry(tuple(GroupGeometry(f"n{i}", 1 + i % 3, 3 + i) for i in range(11)), 3)
