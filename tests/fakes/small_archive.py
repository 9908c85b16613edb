"""A small archive, written through the same code as an engine's: shards, ticks, an inbox."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace

import numpy as np

from s3kv.bucket.base import ObjectStore
from s3kv.core.chunking import chunk_blocks_for
from s3kv.core.follower import Follower
from s3kv.core.forgetting import Limits
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, fingerprints
from s3kv.core.keys import namespace_key, shard_key
from s3kv.core.namespace import Namespace, form_namespace
from s3kv.core.records import DEAD, make_records
from s3kv.core.requests import Moment
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.shard import ShardIdentity, seal
from s3kv.runtime.clock import Clock
from s3kv.runtime.perform import perform
from tests.fakes.namespaces import GROUP, LAYOUT, namespace_fields

BLOCK_TOKENS = 16
CHUNK_TOKENS = 64
LAYERS = ("model.layers.0.attn", "model.layers.1.attn")
PAGE_BYTES = 96
TIMEOUT_S = 10.0


def small_namespace(label: str = "") -> Namespace:
    """Two layers of three heads; chunks of four blocks."""
    group = replace(GROUP, page_bytes=PAGE_BYTES, page_shapes=(), layer_names=LAYERS)
    layout = replace(LAYOUT, groups=(group,))
    return form_namespace(
        replace(
            namespace_fields(), label=label, rope="", layout=(layout,), chunk_tokens=CHUNK_TOKENS
        )
    )


GEOMETRY = ShardGeometry(
    (GroupGeometry("full", len(LAYERS), PAGE_BYTES),), chunk_blocks_for(CHUNK_TOKENS, BLOCK_TOKENS)
)


@dataclass(frozen=True, slots=True)
class SmallArchive:
    """What was written: shards by key; live chunks are announced, `lost` one as dead."""

    namespace: Namespace
    shard_keys: tuple[str, ...]
    shard_bytes: int


def _hashes(name: str, count: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(hashlib.sha256(f"{name} {i}".encode()).digest()) for i in range(count))


async def write_archive(store: ObjectStore, label: str = "") -> SmallArchive:
    """Two full chunks and a tail of two blocks (160 tokens); the tail waits in the inbox.

    A fourth chunk is reported dead. One tick, one segment, watermark set.
    """
    namespace, total = small_namespace(label), 0
    written: list[str] = []
    await store.put(namespace_key(namespace.id), namespace.document, timeout_s=TIMEOUT_S)
    chunks = [_hashes(f"chunk {i}", count) for i, count in enumerate((4, 4, 2))]
    for hashes in chunks:
        identity = ShardIdentity(namespace.id, hashes[-1], ZERO_HASH, hashes, 0, 1)
        slot = bytearray(random.Random(len(written)).randbytes(GEOMETRY.slot_bytes))
        body = seal(memoryview(slot), GEOMETRY, identity, bytes(16))
        key = shard_key(namespace.id, hashes[-1], 0, 1)
        await store.put(key, bytes(body), timeout_s=TIMEOUT_S)
        written.append(key)
        total += len(body)
    await _announce(store, namespace, [hashes[-1] for hashes in chunks])
    return SmallArchive(namespace, tuple(written), total)


async def _announce(store: ObjectStore, namespace: Namespace, chunks: list[BlockHash]) -> None:
    clock = Clock()
    follower = Follower(namespace.id, 60.0)
    sequencer = Sequencer(
        follower, bytes(range(16)), SequencerSettings(limits=Limits(ttl_s=3600)), random.Random(0)
    )
    now = Moment(clock.unix_s(), clock.monotonic_s())
    lost = _hashes("lost", 1)
    fps = fingerprints([*chunks, *lost])
    seen_s = int(now.unix_s) - 120
    await perform(follower.open(), store, clock, TIMEOUT_S)
    flags = np.array([0, 0, DEAD], np.uint16)
    own = make_records(fps[[0, 1, 3]], seen_s, np.array([4, 4, 0], np.uint16), flags)
    await perform(sequencer.sequence(now, own), store, clock, TIMEOUT_S)
    tail = make_records(fps[2:3], seen_s, 2)
    await perform(sequencer.write_segment(tail, now), store, clock, TIMEOUT_S)
