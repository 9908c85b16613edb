"""Archives to verify: any number of chunks and writers in memory, listed in an index, and harms."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xxhash import xxh3_64_intdigest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.memory import MemoryStore
from s3kv.core.ids import ZERO_HASH, BlockHash, NamespaceId, fingerprints
from s3kv.core.keys import namespace_key, parse_shard_key, shard_key
from s3kv.core.namespace import Namespace, form_namespace
from s3kv.core.records import make_records
from s3kv.core.requests import Listed
from s3kv.core.shard import ShardIdentity, seal
from s3kv.core.verified import Progress, Tally
from s3kv.core.verifying import Choice, Part, Shape
from s3kv.runtime.index_tool import IndexTool
from s3kv.runtime.verifying import Verifier, VerifySettings
from tests.fakes.clock import FakeClock
from tests.fakes.small_archive import GEOMETRY, small_namespace

HOUR_S = 3_600.0
CHUNK_BLOCKS = GEOMETRY.chunk_blocks


def namespace_of(writer_count: int, label: str = "") -> Namespace:
    """The small namespace, of so many ranks."""
    fields = replace(small_namespace(label).fields, tensor_parallel_size=writer_count)
    return form_namespace(fields)


def chunk_hashes(seed: int, block_count: int = CHUNK_BLOCKS) -> tuple[BlockHash, ...]:
    """The blocks of one chunk; the last one names it."""
    return tuple(
        BlockHash(hashlib.sha256(f"chunk {seed} block {i}".encode()).digest())
        for i in range(CHUNK_BLOCKS - block_count, CHUNK_BLOCKS)
    )


def shard_of(
    ns: NamespaceId, hashes: Sequence[BlockHash], writer: int = 0, writers: int = 1
) -> bytes:
    """A sealed shard with random pages and a random nonce."""
    identity = ShardIdentity(ns, hashes[-1], ZERO_HASH, tuple(hashes), writer, writers)
    rng = random.Random(f"{hashes[-1].hex()} {writer}")
    slot = bytearray(rng.randbytes(GEOMETRY.slot_bytes))
    return bytes(seal(memoryview(slot), GEOMETRY, identity, random.randbytes(16)))


def flipped(body: bytes, at: int, bits: int = 1) -> bytes:
    """The body with some bits of one byte inverted."""
    return body[:at] + bytes([body[at] ^ bits]) + body[at + 1 :]


def resealed(head: bytes) -> bytes:
    """A header whose checksum is right again."""
    field = b'"header_checksum":"'
    at = head.index(field) + len(field)
    zeroed = head[:at] + b"0" * 16 + head[at + 16 :]
    return head[:at] + b"%016x" % xxh3_64_intdigest(zeroed) + head[at + 16 :]


@dataclass(frozen=True, slots=True)
class VerifyArchive:
    """A store in memory with one namespace, on a clock that the test moves.

    names: chunk hashes in the order of their making; keys: of each chunk, its shards by writer.
    """

    store: MemoryStore
    clock: FakeClock
    namespace: Namespace
    writer_count: int
    names: tuple[BlockHash, ...]
    keys: tuple[tuple[str, ...], ...]

    @property
    def ns(self) -> NamespaceId:
        return self.namespace.id

    @property
    def shape(self) -> Shape:
        return Shape(self.ns, self.writer_count, (GEOMETRY,))

    @property
    def shard_keys(self) -> list[str]:
        return [key for keys in self.keys for key in keys]

    def harm(self, key: str, body: bytes | None) -> None:
        """Let other bytes, or none, lie under a name."""
        if body is None:
            self.store._remove(key)
        else:
            self.store.write(key, body)

    async def opened(self, store: ObjectStore | None = None) -> IndexTool:
        """A reader of the index, through `store` if given."""
        tool = IndexTool(store or self.store, self.ns, self.clock)
        await tool.open()
        return tool

    async def verified(
        self,
        store: ObjectStore | None = None,
        progress: Progress | None = None,
        choice: Choice | None = None,
        **settings: Any,
    ) -> Tally:
        """What a whole walk finds."""
        progress = progress or Progress()
        tool = await self.opened(store)
        verifier = Verifier(tool, self.shape, VerifySettings(**settings))
        await verifier.walk(progress, choice)
        assert progress.is_done
        return progress.tally

    def part(self, key: str) -> Part:
        """A shard as a listing would show it."""
        name = parse_shard_key(key)
        assert name is not None
        found = self.store._describe(key, self.store._stored[key])
        return Part(name, Listed(key, found.size, found.modified_s, found.age_s, found.etag))


async def make_archive(chunk_count: int = 3, writer_count: int = 1) -> VerifyArchive:
    """Full chunks, all announced in one tick and two hours old."""
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    namespace = namespace_of(writer_count)
    store.write(namespace_key(namespace.id), namespace.document)
    names, keys = [], []
    for seed in range(chunk_count):
        hashes = chunk_hashes(seed)
        names.append(hashes[-1])
        written = []
        for writer in range(writer_count):
            key = shard_key(namespace.id, hashes[-1], writer, writer_count)
            store.write(key, shard_of(namespace.id, hashes, writer, writer_count))
            written.append(key)
        keys.append(tuple(written))
    archive = VerifyArchive(store, clock, namespace, writer_count, tuple(names), tuple(keys))
    tool = await archive.opened()
    records = make_records(fingerprints(names), int(clock.unix_s()), CHUNK_BLOCKS)
    await tool.commit(records)
    await tool.sequence()
    clock.jump(2 * HOUR_S)
    return archive
