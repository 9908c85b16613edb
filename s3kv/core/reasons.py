"""Why tokens do not come from the archive: one vocabulary for requests, metrics and people.

Rule upheld here: a word means the same wherever it appears, in the report of a request
(`miss_reason`), in `s3kv explain` and in what a sweep says. The words are values that leave the
process: a changed one is a change of the interface.
"""

from __future__ import annotations

import enum


class MissReason(enum.StrEnum):
    """Why a request got nothing, or less than was promised."""

    ABSENT = "absent"
    """The index knows nothing of the prompt's first chunk."""
    EXPIRED = "expired"
    """The first chunk was archived, and was forgotten by age or by the size limit."""
    LOST = "lost"
    """The first chunk's shards were reported gone or wrong, or were forgotten by command."""
    SHORT = "short"
    """The prompt has no chunk that could be archived: fewer blocks than the smallest tail."""
    NOTHING_BEYOND_LOCAL = "nothing_beyond_local"
    """What is archived brings nothing beyond the engine's own cache."""
    INDEX_NOT_OPEN = "index_not_open"
    """The index was not read yet, and the bucket may not be asked."""
    STALE = "stale"
    """The index was read too long ago, and the bucket may not be asked."""
    LOOKUP_DEADLINE = "lookup_deadline"
    """Asking the bucket took too long."""
    PROBE_FAILED = "probe_failed"
    """Asking the bucket failed."""
    LOAD_FAILED = "load_failed"
    """There was a hit, and (some of) it could not be loaded."""
    ATTEMPTS_USED = "attempts_used"
    """Loads of this request failed too often."""
    NO_NAMESPACE = "no_namespace"
    """The archive is off, or it is not known yet which one is this engine's."""
    REFUSED = "refused"
    """The bucket holds something else under this namespace."""
    NOT_WANTED = "not_wanted"
    """The request asked for no load."""
    BAD_OPTIONS = "bad_options"
    """The request's own options could not be understood."""
    ROLE = "role"
    """The engine's role loads nothing."""
    PREFIX_CACHE_SKIPPED = "prefix_cache_skipped"
    """The engine reads no prefix cache for this request."""
    ADAPTER = "adapter"
    """The request uses an adapter, whose weights nobody identifies."""
    NAMED_MEDIA = "named_media"
    """The request's images are named, not digested."""
    PAUSED = "paused"
    """An operator paused loading for the whole fleet."""
    NOT_LOOKED_UP = "not_looked_up"
    """The request ended before its lookup was over."""


class ChunkState(enum.StrEnum):
    """What index and bucket together say of one chunk."""

    PRESENT = "present"
    """Listed, and all shards are there."""
    WAITING = "waiting"
    """All shards are there, and listed since a moment: who follows the index knows it soon."""
    ABSENT = "absent"
    """Neither index nor bucket know it."""
    EXPIRED = "expired"
    """Forgotten by age or by the size limit; a sweep deletes what is left of it."""
    LOST = "lost"
    """Disowned: its shards were found gone or wrong, or were forgotten by command."""
    INCOMPLETE = "incomplete"
    """Shards of some ranks are missing."""
    MISSHAPEN = "misshapen"
    """A shard has a size that no shard of this chunk can have."""
    QUARANTINED = "quarantined"
    """A shard was found wrong and set aside."""
    GONE = "gone"
    """Listed, but its shards are gone: the next load finds out."""
    UNANNOUNCED = "unannounced"
    """All shards are there, and so young that they may be listed any moment."""
    ORPHAN = "orphan"
    """All shards are there, and nobody has listed them in time; a sweep adopts them."""
