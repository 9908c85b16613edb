"""What one namespace's index and bucket say of a prompt's chunks. Reads only; prints nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from s3kv.bucket.base import Missing, ObjectInfo, ObjectStore
from s3kv.cli.connection import REQUEST_TIMEOUT_S
from s3kv.cli.listing import read_namespace
from s3kv.cli.prompt_keys import Derived, Prompt, derive_chunks
from s3kv.cli.tally import geometries_of
from s3kv.core.chunking import Chunk, tail_candidates
from s3kv.core.explaining import (
    Mark,
    Seen,
    Shards,
    hit_blocks,
    marks_beyond,
    open_log,
    state_of,
    writer_count_of,
)
from s3kv.core.ids import NamespaceId, fingerprints
from s3kv.core.keys import quarantine_key, shard_key
from s3kv.core.lookup import Match, match
from s3kv.core.namespace import Namespace
from s3kv.core.plans import usable_blocks
from s3kv.core.sequencer import SequencerSettings
from s3kv.core.snapshot import Snapshot
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool

PARALLEL_HEADS: Final = 32
ANNOUNCE_S: Final = SequencerSettings().announce_s


@dataclass(frozen=True, slots=True)
class IndexLook:
    """An index, read to its head. log: without what waits in the inbox; whole: with it.

    problem: why it could not be read, or the empty string.
    """

    log: Snapshot
    whole: Snapshot
    problem: str = ""

    @property
    def is_unindexed(self) -> bool:
        """Whether there is neither log nor inbox: then engines ask the bucket for chunks' names.

        So it is where the store cannot carry an index, and where somebody deleted it until it is
        begun anew.
        """
        whole = self.whole
        return not (self.problem or whole.head or len(whole.base) or len(whole.recent))

    def marks(self, chunks: Sequence[Chunk]) -> list[Mark]:
        """One for each chunk."""
        if self.problem:
            return [Mark.UNREAD] * len(chunks)
        if self.is_unindexed:
            return [Mark.NO_INDEX] * len(chunks)
        fps = fingerprints([chunk.chunk_hash for chunk in chunks])
        return marks_beyond(self.log, self.whole, fps)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A namespace in which the prompt may be archived.

    named_blocks: where there is no index, blocks from the start on whose shards are there.
    """

    namespace: Namespace
    derived: Derived
    index: IndexLook
    named_blocks: int = 0

    @property
    def listed_tokens(self) -> int:
        """Tokens from the start on that an engine that starts finds: in the index, or by name."""
        derived = self.derived
        if self.index.is_unindexed:
            return self.named_blocks * derived.block_tokens
        found = match(
            self.index.whole.present,
            derived.hashes,
            derived.chunk_blocks,
            derived.min_tail_blocks,
        )
        return found.blocks * derived.block_tokens if isinstance(found, Match) else 0

    @property
    def last_used_s(self) -> int:
        """Unix seconds of the last use of any chunk, 0 for none."""
        parts = (self.index.whole.base, self.index.whole.recent)
        return max((int(part.seen_s.max()) for part in parts if len(part)), default=0)


@dataclass(frozen=True, slots=True)
class PromptView:
    """own: the prompt's chunks as an engine saves them; tails: those of shorter prompts that may
    bridge into the first full chunk that is missing, as far as the index knows them."""

    candidate: Candidate
    own: tuple[Seen, ...]
    tails: tuple[Seen, ...]

    @property
    def rows(self) -> list[Seen]:
        """Everything, by end."""
        return sorted((*self.own, *self.tails), key=lambda seen: seen.chunk.end_block)

    @property
    def is_whole(self) -> bool:
        """Whether all that can be archived of the prompt is there."""
        return bool(self.own) and all(seen.is_there for seen in self.own)

    @property
    def hit_tokens(self) -> int:
        """Tokens that an engine without any of its own gets from the archive."""
        derived = self.candidate.derived
        end_block = usable_blocks(
            hit_blocks(self.rows), 0, derived.token_count, derived.block_tokens, None, 0
        )
        return end_block * derived.block_tokens


async def read_candidate(
    store: ObjectStore, ns: NamespaceId, prompt: Prompt, clock: Clock
) -> Candidate | str:
    """The namespace and its index, or why it cannot be looked at. Raises `S3KVError`."""
    namespace = await read_namespace(store, ns)
    if not isinstance(namespace, Namespace):
        return namespace.reason
    try:
        derived = derive_chunks(prompt, namespace.fields)
    except ValueError as error:
        return str(error)
    candidate = Candidate(namespace, derived, await _read_index(store, ns, clock))
    if not candidate.index.is_unindexed:
        return candidate
    own = await _look_at(store, candidate, derived.chunks, lambda done, text: None)
    return replace(candidate, named_blocks=hit_blocks(own))


async def _read_index(store: ObjectStore, ns: NamespaceId, clock: Clock) -> IndexLook:
    tool = IndexTool(store, ns, clock)
    try:
        await tool.perform(open_log(tool.follower))
        log = tool.snapshot
        await tool.open()
    except S3KVError as error:
        return IndexLook(Snapshot(), Snapshot(), str(error))
    return IndexLook(log, tool.snapshot)


async def read_view(
    store: ObjectStore, candidate: Candidate, tell: Callable[[int, str], None]
) -> PromptView:
    """Ask the bucket for every shard of the prompt's chunks. Raises `S3KVError`.

    tell: how many of the prompt's chunks are done, then how many of the tails.
    """
    derived = candidate.derived
    own = await _look_at(store, candidate, derived.chunks, tell)
    known = [tail for tail in _bridges(derived, own) if tail not in derived.chunks]
    found = zip(known, candidate.index.marks(known), strict=True)
    listed = (Mark.LIVE, Mark.WAITING, Mark.EXPIRED, Mark.LOST)
    tails = [tail for tail, mark in found if mark in listed]
    return PromptView(candidate, tuple(own), tuple(await _look_at(store, candidate, tails, tell)))


def _bridges(derived: Derived, own: Sequence[Seen]) -> list[Chunk]:
    """Tails that begin where the first full chunk is missing."""
    full = [seen for seen in own if seen.chunk.block_count == derived.chunk_blocks]
    hit_count = next((i for i, seen in enumerate(full) if not seen.is_there), len(full))
    return tail_candidates(derived.hashes, derived.chunk_blocks, hit_count, derived.min_tail_blocks)


async def _look_at(
    store: ObjectStore,
    candidate: Candidate,
    chunks: Sequence[Chunk],
    tell: Callable[[int, str], None],
) -> list[Seen]:
    looker = _Looker(store, candidate.namespace, tell)
    shards = await asyncio.gather(*(looker.shards_of(chunk) for chunk in chunks))
    watermark_s = candidate.index.whole.watermark_s
    return [
        Seen(chunk, mark, found, state_of(mark, found, watermark_s, ANNOUNCE_S))
        for chunk, mark, found in zip(chunks, candidate.index.marks(chunks), shards, strict=True)
    ]


class _Looker:
    """Asks for shards, a bounded number at once. Owned by one task."""

    def __init__(
        self, store: ObjectStore, namespace: Namespace, tell: Callable[[int, str], None]
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._writer_count = writer_count_of(namespace.fields)
        self._geometries = geometries_of(namespace)
        self._turn = asyncio.Semaphore(PARALLEL_HEADS)
        self._done, self._tell = 0, tell

    async def shards_of(self, chunk: Chunk) -> Shards:
        """What lies under the names of one chunk; in quarantine only what is missing is sought."""
        writers = range(self._writer_count)
        found = await asyncio.gather(*(self._head(shard_key, chunk, w) for w in writers))
        infos = {w: info for w, info in zip(writers, found, strict=True) if info is not None}
        there = [w for w, info in infos.items() if info.size == self._shard_bytes(chunk, w)]
        shards = Shards(
            self._writer_count,
            tuple(there),
            tuple(sorted(infos.keys() - set(there))),
            youngest_age_s=min((infos[w].age_s for w in there), default=None),
            oldest_s=min((infos[w].modified_s for w in there), default=None),
        )
        aside = await asyncio.gather(
            *(self._head(quarantine_key, chunk, w) for w in shards.missing)
        )
        pairs = zip(shards.missing, aside, strict=True)
        self._done += 1
        self._tell(self._done, "")
        return replace(shards, quarantined=tuple(w for w, info in pairs if info is not None))

    def _shard_bytes(self, chunk: Chunk, writer_index: int) -> int:
        # Ranks are numbered stage after stage.
        stage = writer_index * len(self._geometries) // self._writer_count
        return self._geometries[stage].shard_bytes(chunk.block_count)

    async def _head(
        self,
        name_of: Callable[[NamespaceId, bytes, int, int], str],
        chunk: Chunk,
        writer_index: int,
    ) -> ObjectInfo | None:
        key = name_of(self._namespace.id, chunk.chunk_hash, writer_index, self._writer_count)
        async with self._turn:
            found = await self._store.stat(key, timeout_s=REQUEST_TIMEOUT_S)
        return None if isinstance(found, Missing) else found
