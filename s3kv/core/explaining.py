"""From what index and bucket know of a prompt's chunks to one state each, and what it comes to.

Pure. The index alone decides what an engine is offered, the bucket what it then gets: a chunk is
present only if both have it, unless there is no index at all: then names decide, as for an engine.
Looking is somebody else's work.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.chunking import Chunk
from s3kv.core.follower import Follower
from s3kv.core.keys import inbox_prefix
from s3kv.core.namespace import NamespaceFields
from s3kv.core.reasons import ChunkState, MissReason
from s3kv.core.records import DEAD
from s3kv.core.requests import All, ListPrefix, Reply, Request, Steps
from s3kv.core.snapshot import Snapshot


class Mark(enum.Enum):
    """What the index says of one chunk."""

    LIVE = "live"
    WAITING = "in the inbox"
    EXPIRED = "below the watermark"
    LOST = "dead"
    UNKNOWN = "unknown"
    UNREAD = "not read"
    NO_INDEX = "no index"


def marks(snapshot: Snapshot, fps: NDArray[np.uint64]) -> list[Mark]:
    """One mark for each of uint64[k] fingerprints, in their order."""
    found = snapshot.look_up(fps)
    alive, lost = found.live(snapshot.watermark_s), found.flags & DEAD != 0
    return [
        Mark.LIVE if alive[i] else Mark.LOST if lost[i] else Mark.EXPIRED if known else Mark.UNKNOWN
        for i, known in enumerate(found.known)
    ]


def marks_beyond(log: Snapshot, whole: Snapshot, fps: NDArray[np.uint64]) -> list[Mark]:
    """As `marks` of the whole, telling apart what the log, without the inbox, does not list yet."""
    pairs = zip(marks(log, fps), marks(whole, fps), strict=True)
    return [
        Mark.WAITING if now is Mark.LIVE and before is not Mark.LIVE else now
        for before, now in pairs
    ]


def open_log(follower: Follower) -> Steps[None]:
    """As the follower's `open`, but as if the inbox were empty. Raises as it does."""
    opening = follower.open()
    try:
        request = next(opening)
        while True:
            reply = yield request
            request = opening.send(_without_inbox(request, reply, inbox_prefix(follower.namespace)))
    except StopIteration:
        return
    finally:
        opening.close()


def _without_inbox(request: Request, reply: Reply, inbox: str) -> Reply:
    if isinstance(request, All) and isinstance(reply.value, tuple):
        parts = zip(request.requests, reply.value, strict=True)
        blanked = (
            _without_inbox(asked, told, inbox) for asked, told in parts if isinstance(told, Reply)
        )
        return replace(reply, value=tuple(blanked))
    return replace(reply, value=()) if request == ListPrefix(inbox) else reply


def why_absent(snapshot: Snapshot, fps: NDArray[np.uint64]) -> MissReason:
    """Why none of uint64[k] fingerprints is offered: the names that the first chunk may have."""
    found = marks(snapshot, fps)
    if Mark.LOST in found:
        return MissReason.LOST
    return MissReason.EXPIRED if Mark.EXPIRED in found else MissReason.ABSENT


@dataclass(frozen=True, slots=True)
class Shards:
    """What HEADs of one chunk's shards found.

    writer_count: how many there should be; there: indices of writers whose shard has the right
    size; misshapen: of those with another size; quarantined: of those set aside; youngest_age_s,
    oldest_s: age of the newest and LastModified (Unix seconds) of the oldest of those that are
    there, None without any.
    """

    writer_count: int
    there: tuple[int, ...] = ()
    misshapen: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()
    youngest_age_s: float | None = None
    oldest_s: float | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Indices of the writers whose shard is not there at all."""
        found = {*self.there, *self.misshapen}
        return tuple(index for index in range(self.writer_count) if index not in found)


def state_of(mark: Mark, shards: Shards, watermark_s: int, announce_s: float) -> ChunkState:
    """The one state of a chunk. announce_s: how old a shard may be when it is first listed."""
    if shards.misshapen:
        return ChunkState.MISSHAPEN
    if shards.missing:
        return _state_of_a_hole(mark, shards)
    match mark:
        case Mark.LOST:
            return ChunkState.LOST
        case Mark.EXPIRED:
            return ChunkState.EXPIRED
        case Mark.WAITING:
            return ChunkState.WAITING
        case Mark.UNKNOWN:
            return _state_of_an_unlisted(shards, watermark_s, announce_s)
    return ChunkState.PRESENT


def _state_of_an_unlisted(shards: Shards, watermark_s: int, announce_s: float) -> ChunkState:
    if shards.oldest_s is not None and shards.oldest_s < watermark_s:
        return ChunkState.EXPIRED  # who forgets records below the watermark remembers none of it
    is_young = (shards.youngest_age_s or 0.0) <= announce_s
    return ChunkState.UNANNOUNCED if is_young else ChunkState.ORPHAN


def _state_of_a_hole(mark: Mark, shards: Shards) -> ChunkState:
    if set(shards.missing) & set(shards.quarantined):
        return ChunkState.QUARANTINED
    if shards.there:
        return ChunkState.INCOMPLETE
    match mark:
        case Mark.LIVE | Mark.WAITING:
            return ChunkState.GONE
        case Mark.LOST:
            return ChunkState.LOST
        case Mark.EXPIRED:
            return ChunkState.EXPIRED
    return ChunkState.ABSENT


@dataclass(frozen=True, slots=True)
class Seen:
    """One chunk, what was found, and what that means."""

    chunk: Chunk
    mark: Mark
    shards: Shards
    state: ChunkState

    @property
    def is_there(self) -> bool:
        """Whether an engine that reads the index now can load it."""
        return self.state in (ChunkState.PRESENT, ChunkState.WAITING)


def hit_blocks(seen: Sequence[Seen]) -> int:
    """Blocks of a prompt that can be loaded: up to the first chunk that is not there.

    seen: in order of their ends, and of several that begin at one block any may bridge to the next.
    """
    end = 0
    for each in seen:
        if each.is_there and each.chunk.start_block <= end:
            end = max(end, each.chunk.end_block)
    return end


def first_missing(seen: Sequence[Seen]) -> Seen | None:
    """The first of these chunks that is not there."""
    return next((each for each in seen if not each.is_there), None)


_SAYS: Final[Mapping[Mark, MissReason]] = {
    Mark.LIVE: MissReason.LOAD_FAILED,
    Mark.EXPIRED: MissReason.EXPIRED,
    Mark.LOST: MissReason.LOST,
}


def request_says(first: Seen) -> MissReason | None:
    """What a request of a running engine reports if this is its first chunk; None: a hit."""
    if first.state is ChunkState.PRESENT:
        return None
    return _SAYS.get(first.mark, MissReason.ABSENT)


def writer_count_of(fields: NamespaceFields) -> int:
    """Shards per chunk: one from each rank that holds bytes of its own."""
    ranks = (
        fields.tensor_parallel_size
        * fields.pipeline_parallel_size
        * fields.prefill_context_parallel_size
    )
    return max(1, ranks // fields.replicas)
