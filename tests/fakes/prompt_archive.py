"""An archive of prompts, step by step: shards of chosen chunks, records in ticks or in the inbox.

Chunks are named as the commands name them, so a prompt of token ids finds them again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from s3kv.bucket.base import ObjectStore
from s3kv.cli.prompt_keys import Derived, Prompt, derive_chunks
from s3kv.core.blockhash import root_hash
from s3kv.core.chunking import Chunk
from s3kv.core.ids import fingerprints
from s3kv.core.keys import namespace_key, quarantine_key, shard_key
from s3kv.core.namespace import Namespace, form_namespace
from s3kv.core.records import DEAD, RecordSet, make_records
from s3kv.core.sequencer import SequencerSettings
from s3kv.core.shard import ShardIdentity, seal
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool
from tests.fakes.small_archive import BLOCK_TOKENS, GEOMETRY, TIMEOUT_S, small_namespace

MIN_TAIL_TOKENS = 2 * BLOCK_TOKENS


def token_ids(block_count: int, seed: int, extra: int = 5) -> list[int]:
    """So many whole blocks of random tokens, and a few more; a seed's prompts share prefixes."""
    numbers = random.Random(seed)
    return [numbers.randrange(50_000) for _ in range(block_count * BLOCK_TOKENS + extra)]


def prompt_of(ids: Sequence[int], salt: str = "") -> Prompt:
    """Tails from two blocks on."""
    return Prompt(tuple(ids), salt=salt, min_tail_tokens=MIN_TAIL_TOKENS)


def namespace_of(rank_count: int = 1, **changes: object) -> Namespace:
    """Chunks of four blocks of 16 tokens, written by so many ranks."""
    fields = replace(small_namespace().fields, tensor_parallel_size=rank_count)
    return form_namespace(replace(fields, **changes))  # type: ignore[arg-type]


@dataclass
class PromptArchive:
    """One namespace on a store."""

    store: ObjectStore
    namespace: Namespace = field(default_factory=namespace_of)

    @property
    def rank_count(self) -> int:
        return self.namespace.fields.tensor_parallel_size

    def derived(self, prompt: Prompt) -> Derived:
        return derive_chunks(prompt, self.namespace.fields)

    async def describe(self) -> None:
        key = namespace_key(self.namespace.id)
        await self.store.put(key, self.namespace.document, timeout_s=TIMEOUT_S)

    async def save(self, prompt: Prompt) -> Derived:
        """What engines do: document, all shards, one tick."""
        derived = self.derived(prompt)
        await self.describe()
        for chunk in derived.chunks:
            await self.upload(derived, chunk)
        await self.announce(derived.chunks)
        return derived

    async def upload(
        self, derived: Derived, chunk: Chunk, ranks: Sequence[int] | None = None
    ) -> None:
        for rank in range(self.rank_count) if ranks is None else ranks:
            body = self.shard(derived, chunk, rank)
            await self.store.put(self.key(chunk, rank), body, timeout_s=TIMEOUT_S)

    def shard(self, derived: Derived, chunk: Chunk, rank: int = 0) -> bytes:
        """A whole one, of random data."""
        start, end = chunk.start_block, chunk.end_block
        root = root_hash(self.namespace.fields.hash_algorithm)
        parent = derived.hashes[start - 1] if start else root
        identity = ShardIdentity(
            self.namespace.id,
            chunk.chunk_hash,
            parent,
            derived.hashes[start:end],
            rank,
            self.rank_count,
        )
        slot = bytearray(random.Random(chunk.chunk_hash).randbytes(GEOMETRY.slot_bytes))
        return bytes(seal(memoryview(slot), GEOMETRY, identity, bytes(16)))

    def fps(self, chunks: Sequence[Chunk]) -> NDArray[np.uint64]:
        return fingerprints([chunk.chunk_hash for chunk in chunks])

    def key(self, chunk: Chunk, rank: int = 0) -> str:
        return shard_key(self.namespace.id, chunk.chunk_hash, rank, self.rank_count)

    async def announce(
        self, chunks: Sequence[Chunk], *, age_s: int = 0, dead: bool = False
    ) -> None:
        """Into a tick, as used so long ago, or as lost."""
        tool = await self.tool()
        await tool.commit(self._records(tool, chunks, age_s, dead))
        await tool.sequence()

    async def leave_in_inbox(self, chunks: Sequence[Chunk]) -> None:
        tool = await self.tool()
        await tool.commit(self._records(tool, chunks, 0, dead=False))

    def _records(
        self, tool: IndexTool, chunks: Sequence[Chunk], age_s: int, dead: bool
    ) -> RecordSet:
        seen_s = int(tool.now().unix_s) - age_s
        blocks = [0 if dead else chunk.block_count for chunk in chunks]
        return make_records(self.fps(chunks), seen_s, blocks, DEAD if dead else 0)

    async def tool(self, settings: SequencerSettings | None = None) -> IndexTool:
        """The index, open."""
        tool = IndexTool(self.store, self.namespace.id, Clock(), settings)
        await tool.open()
        return tool

    async def quarantine(self, chunk: Chunk, rank: int = 0) -> None:
        """Set a shard aside, as `s3kv verify` does."""
        body = await self.store.get(
            self.key(chunk, rank), max_bytes=GEOMETRY.slot_bytes, timeout_s=TIMEOUT_S
        )
        assert isinstance(body, bytes)
        aside = quarantine_key(self.namespace.id, chunk.chunk_hash, rank, self.rank_count)
        await self.store.put(aside, body, timeout_s=TIMEOUT_S)
        await self.delete(chunk, rank)

    async def delete(self, chunk: Chunk, rank: int = 0) -> None:
        await self.store.delete([self.key(chunk, rank)], timeout_s=TIMEOUT_S)
