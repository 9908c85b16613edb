"""The inbox as a sequencer sees it: what waits there, for how long, and what may go.

Rule upheld here: a name that does not parse as a segment of ours is neither read nor deleted. One
segment name has one content for ever, so what was folded once may be deleted unread later.

Sans-IO (see `requests`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from s3kv.core import keys
from s3kv.core.ids import NamespaceId
from s3kv.core.indexfile import Kind, decode, max_file_bytes
from s3kv.core.records import RECORDS_MAX, RecordSet, merge
from s3kv.core.requests import (
    PARALLEL_MAX,
    Delete,
    Done,
    Get,
    Listed,
    ListPrefix,
    Refused,
    Steps,
    ask,
    ask_all,
    listed,
)
from s3kv.errors import Corrupt, Mismatch, NewerFormat

SEGMENTS_MAX: Final = 256
"""Segments folded into one tick: bounds the work of one call; the rest follows at once."""

REFUSED_PAUSE: Final = 600
"""Folds that delete nothing after the store has refused it."""


@dataclass(frozen=True, slots=True)
class Fold:
    """records: at most `RECORDS_MAX`, merged; keys: may be deleted once they are in a tick."""

    records: RecordSet
    keys: tuple[str, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """age_s: how long the oldest segment waits, None if there is none; at_s: when it was so."""

    age_s: float | None
    at_s: float


class Inbox:
    """Owned by one sequencer."""

    def __init__(self, namespace: NamespaceId, drop_unreadable_s: float) -> None:
        """drop_unreadable_s: files that nobody can read are deleted at this age."""
        self.folded_count = 0
        self._namespace = namespace
        self._drop_unreadable_s = drop_unreadable_s
        self._folded: set[str] = set()
        self._deletes_refused_left = 0
        self._writers: dict[bytes, float] = {}
        self._since: dict[str, float] = {}

    def read(self, own: RecordSet) -> Steps[Fold]:
        """Merge own records with as many segments as fit, the oldest first.

        Raises `NewerFormat` for a segment of a newer version: then nothing may be written.
        """
        reply = yield from ask(ListPrefix(keys.inbox_prefix(self._namespace)))
        segments = _oldest_first(listed(reply))
        self._folded &= {found.key for found in segments}
        done = [found.key for found in segments if found.key in self._folded]
        fresh = [found for found in segments if found.key not in self._folded]
        parts, count = [own], len(own)
        for start in range(0, min(len(fresh), SEGMENTS_MAX), PARALLEL_MAX):
            batch = fresh[start : start + PARALLEL_MAX]
            limit = max_file_bytes(Kind.SEGMENT)
            replies = yield from ask_all([Get(found.key, limit) for found in batch])
            for found, answer in zip(batch, replies, strict=True):
                records = self._decoded(found.key, answer.value, answer.received_s)
                if records is None:
                    if found.age_s > self._drop_unreadable_s:
                        done.append(found.key)
                    continue
                count += len(records)
                if count > RECORDS_MAX:
                    return Fold(merge(parts), tuple(done), has_more=True)
                parts.append(records)
                done.append(found.key)
        return Fold(merge(parts), tuple(done), has_more=len(fresh) > SEGMENTS_MAX)

    def delete(self, folded: Sequence[str]) -> Steps[None]:
        """Best effort: what stays is deleted next time, or folded again by somebody else."""
        if not folded:
            return
        if self._deletes_refused_left:
            self._deletes_refused_left -= 1  # the policy says no: asking each second costs money
            self._folded.update(folded)
            return
        self.folded_count += len(set(folded) - self._folded)
        self._folded.update(folded)
        reply = yield Delete(tuple(folded))
        if isinstance(reply.value, Done):
            self._folded.difference_update(folded)
        elif isinstance(reply.value, Refused):
            self._deletes_refused_left = REFUSED_PAUSE

    def oldest(self) -> Steps[Waiting]:
        """How long the oldest segment waits, by the store's clock, or by ours if it has none."""
        reply = yield from ask(ListPrefix(keys.inbox_prefix(self._namespace)))
        now_s = reply.received_s
        segments = _oldest_first(listed(reply))
        self._since = {found.key: self._since.get(found.key, now_s) for found in segments}
        ages = [max(found.age_s, now_s - self._since[found.key]) for found in segments]
        return Waiting(max(ages, default=None), now_s)

    def writer_count(self, since_s: float) -> int:
        """How many processes' segments were read since then."""
        self._writers = {writer: at for writer, at in self._writers.items() if at >= since_s}
        return len(self._writers)

    def _decoded(self, key: str, body: object, now_s: float) -> RecordSet | None:
        name = keys.parse_segment_key(key)
        if name is None or not isinstance(body, bytes):
            return None
        try:
            _, records = decode(body, self._namespace, Kind.SEGMENT, name.seq, name.seq)
        except NewerFormat:
            raise  # its writer is alive and well: neither folded nor ever deleted by us
        except (Corrupt, Mismatch):
            return None
        self._writers[name.writer] = now_s
        return records


def _oldest_first(found: Sequence[Listed]) -> list[Listed]:
    segments = [each for each in found if keys.parse_segment_key(each.key) is not None]
    return sorted(segments, key=lambda each: (-each.age_s, each.key))
