"""Chunks of one small geometry, each with an identity of its own, and a slot to hold one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash
from s3kv.core.keys import shard_key
from s3kv.core.shard import ShardIdentity
from tests.fakes.index_store import NS

CHUNK_BLOCKS = 4
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 24),), CHUNK_BLOCKS)


def identity_of(chunk_index: int, block_count: int = CHUNK_BLOCKS) -> ShardIdentity:
    names = tuple(
        BlockHash(hashlib.sha256(b"%d.%d" % (chunk_index, i)).digest()) for i in range(block_count)
    )
    return ShardIdentity(NS, names[-1], ZERO_HASH, names, 0, 1)


def key_of(identity: ShardIdentity) -> str:
    return shard_key(NS, identity.chunk_hash, 0, 1)


@dataclass(eq=False)
class FakeSlot:
    memory: memoryview
