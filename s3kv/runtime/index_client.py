"""Keeps this process's view of the index current, against a real store.

Drives `core.follower` from one task on the loop thread; see `duties` for what happens on errors,
and `index_writer` for the side that writes. Only a NAMESPACE.json that contradicts ours, or cannot
be understood, ends it: then the index never opens and `refused` says why.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.core.compactor import CompactorSettings
from s3kv.core.follower import Follower
from s3kv.core.keys import namespace_key
from s3kv.core.namespace import (
    MAX_DOCUMENT_BYTES,
    Namespace,
    differing_fields,
    parse_namespace_document,
)
from s3kv.core.records import RECORDS_MAX, RecordSet
from s3kv.core.requests import Moment, Steps
from s3kv.core.snapshot import Snapshot
from s3kv.errors import Closed, Corrupt, Mismatch, NewerFormat
from s3kv.runtime.clock import Clock
from s3kv.runtime.duties import Backoff, Duties, Duty
from s3kv.runtime.perform import perform

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Intervals and limits of one process's index client.

    ttl_s, max_bytes: None for unlimited; bytes_per_block: of all writers together, for max_bytes.
    Raises ValueError where the protocol needs another relation between fields.
    """

    poll_interval_s: float = 1.0  # one GET each: $1.05 a month per engine
    head_ttl_s: float = 60.0  # an older view answers nothing
    ttl_s: int | None = None
    max_bytes: int | None = None
    bytes_per_block: int = 0
    min_age_s: int = 3_600  # younger objects are never swept; commits have half of it
    takes_lead: bool = False  # a process of its own sequences for a large fleet
    segments_per_s: float = 30.0  # how many it folds, which sets how often engines may commit
    compactor: CompactorSettings = field(default_factory=CompactorSettings)
    request_timeout_s: float = 10.0
    interval_max_s: float = 60.0  # a tick's advice is obeyed up to here
    queued_records_max: int = 4 * RECORDS_MAX
    backoff: Backoff = field(default_factory=Backoff)
    denied_level: int = logging.ERROR  # one process of an engine complains, not each

    def __post_init__(self) -> None:
        """Check what would silently disable the index or break its rules."""
        if self.head_ttl_s < 4 * self.poll_interval_s:
            raise ValueError("head_ttl_s below 4 * poll_interval_s: the index would rarely answer")
        if self.min_age_s <= 900 + self.head_ttl_s:
            raise ValueError("min_age_s must exceed head_ttl_s + 900 s, the life of a request")
        if self.compactor.margin_s <= 900 + self.head_ttl_s:
            raise ValueError("margin_s must exceed head_ttl_s + 900 s, the life of a request")


@dataclass(slots=True)
class IndexCounts:
    """Totals since start. Written by the loop thread, read by any."""

    polls: int = 0
    commits: int = 0
    records_committed: int = 0
    records_given_up: int = 0


class IndexReader:
    """Follows the index. Methods belong to the loop thread, properties to any."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: Namespace,
        clock: Clock,
        settings: IndexSettings,
        rng: random.Random | None = None,
    ) -> None:
        """rng: jitter of pauses and take-overs; seeded by the system by default."""
        self.counts = IndexCounts()
        self.follower = Follower(namespace.id, settings.head_ttl_s)
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._settings = settings
        self._rng = rng or random.Random()
        self._refused = ""
        self._newer: NewerFormat | None = None
        self._is_compared = False
        self._opened_or_refused = asyncio.Event()
        self._polled_s = self._looked_s = float("-inf")
        self.duties = Duties(
            self._list_duties(), clock, self._rng, settings.backoff, settings.denied_level
        )

    @property
    def snapshot(self) -> Snapshot:
        """What is known now."""
        return self.follower.snapshot

    @property
    def is_unindexed(self) -> bool:
        """Whether there is an archive and no log: then only the names tell what is there.

        So it is where the store cannot carry an index, or somebody deleted it.
        """
        return self._is_compared and self.snapshot.head == 0

    @property
    def refused(self) -> str:
        """Why this index may not be used at all, or the empty string."""
        return self._refused

    def note(self, records: RecordSet) -> None:
        """Add what this process knows by itself to its own view; nothing is written."""
        self.follower.note(records)

    async def wait_opened(self) -> None:
        """Return once the log was read to its head. Raises `Mismatch` if the index is refused."""
        await self._opened_or_refused.wait()
        if self._refused:
            raise Mismatch(self._refused)

    async def run(self) -> None:
        """Open, then stay current, until cancelled, refused, or the store is closed."""
        try:
            await self.duties.run()
        except Mismatch as error:
            self._refuse(str(error))
        except Closed:
            return

    def _list_duties(self) -> list[Duty]:
        return [Duty("following the index", self._follow, self._follow_due_s)]

    def _follow_due_s(self, now_s: float) -> float:
        if self._newer is not None:
            return now_s
        return self._polled_s + self._settings.poll_interval_s

    async def _follow(self) -> None:
        if self._newer is not None:
            raise self._newer
        was_opened = self.snapshot.opened
        if not self._is_compared and (self.snapshot.head or self._may_look_again()):
            # Absent means an empty archive: compared as soon as somebody begins to fill it.
            await self._compare()
        await self._perform(self.follower.poll() if was_opened else self.follower.open())
        self._polled_s = self._clock.monotonic_s()
        self.counts.polls += 1
        if not self._opened_or_refused.is_set():
            self._opened_or_refused.set()
            logger.info(
                "s3kv: index opened at tick %d, %d of its files skipped",
                self.snapshot.head,
                self.follower.skipped_count,
            )

    def _may_look_again(self) -> bool:
        return self._clock.monotonic_s() - self._looked_s > self._settings.head_ttl_s

    async def _compare(self) -> None:
        """Raises `Mismatch` if the bucket says that this namespace is something else."""
        key = namespace_key(self._namespace.id)
        self._looked_s = self._clock.monotonic_s()
        try:
            document = await self._store.get(
                key, max_bytes=MAX_DOCUMENT_BYTES, timeout_s=self._settings.request_timeout_s
            )
            if isinstance(document, Missing):
                return
            if document != self._namespace.document:
                parse_namespace_document(document)
                names = differing_fields(document, self._namespace.document)
                raise Mismatch(f"{key} differs from this engine in: {', '.join(names)}")
        except Corrupt as error:
            raise Mismatch(f"{key} cannot be understood: {error}") from error
        self._is_compared = True

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self.follower.renounce()
        logger.error("s3kv: index refused, nothing is loaded or saved: %s", reason)
        self._opened_or_refused.set()

    async def _perform(self, steps: Steps[None]) -> None:
        await perform(steps, self._store, self._clock, self._settings.request_timeout_s)

    def _now(self) -> Moment:
        return Moment(self._clock.unix_s(), self._clock.monotonic_s())
