"""Keeps this process's view of the index current, and commits to it, against a real store.

Drives `core.follower` and `core.sequencer` from one task on the loop thread; see `duties` for what
happens on errors. Only a NAMESPACE.json that contradicts ours, or cannot be understood, ends it:
then the index never opens and `refused` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from dataclasses import dataclass, field

from s3kv.bucket.base import Created, Missing, ObjectStore
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
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.snapshot import Snapshot
from s3kv.errors import Closed, Corrupt, Denied, Mismatch, S3KVError, Transient
from s3kv.runtime.clock import Clock
from s3kv.runtime.commit_queue import Commit, CommitQueue, earliest_s, merged
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
        self._is_compared = False
        self._opened_or_refused = asyncio.Event()
        self._polled_s = float("-inf")
        self.duties = Duties(
            self._list_duties(), clock, self._rng, settings.backoff, settings.denied_level
        )

    @property
    def snapshot(self) -> Snapshot:
        """What is known now."""
        return self.follower.snapshot

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
        return self._polled_s + self._settings.poll_interval_s

    async def _follow(self) -> None:
        was_opened = self.snapshot.opened
        if not self._is_compared and (not was_opened or self.snapshot.head):
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

    async def _compare(self) -> None:
        """Raises `Mismatch` if the bucket says that this namespace is something else."""
        key = namespace_key(self._namespace.id)
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
        logger.error("s3kv: index refused, nothing is loaded or saved: %s", reason)
        self._opened_or_refused.set()

    async def _perform(self, steps: Steps[None]) -> None:
        await perform(steps, self._store, self._clock, self._settings.request_timeout_s)

    def _now(self) -> Moment:
        return Moment(self._clock.unix_s(), self._clock.monotonic_s())


class IndexWriter(IndexReader):
    """Follows the index, commits to it, and folds everybody's commits when it leads."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: Namespace,
        clock: Clock,
        settings: IndexSettings,
        rng: random.Random | None = None,
    ) -> None:
        """Every instance is a writer of its own, under a new random id."""
        super().__init__(store, namespace, clock, settings, rng)
        self.sequencer = Sequencer(
            self.follower,
            os.urandom(16),
            SequencerSettings(
                ttl_s=settings.ttl_s,
                max_bytes=settings.max_bytes,
                bytes_per_block=settings.bytes_per_block,
            ),
            self._rng,
        )
        self._queue = CommitQueue(settings.queued_records_max)
        self._committed_s = float("-inf")
        self._is_closing = False
        self.writes_allowed = True
        """Whether to take part in sequencing; off until the store's conditional PUT is proved."""

    async def commit(self, records: RecordSet, announce_by_s: float | None = None) -> None:
        """Write records to the index; they are durable when this returns.

        announce_by_s: monotonic seconds after which no request may carry them any more (R5), by
        default min_age_s / 2 from now. The last request may end later: a caller that promised
        something has to look after it then. Raises `Transient` if given up (the outcome is
        unknown), `Throttled` at once if too much is queued, `Denied`, `Mismatch` if refused,
        `Closed`.
        """
        if self._is_closing:
            raise Closed("index writer is closed")
        if self._refused:
            raise Mismatch(self._refused)
        if announce_by_s is None:
            announce_by_s = self._clock.monotonic_s() + self._settings.min_age_s / 2
        self.duties.wake()
        await self._queue.offer(records, announce_by_s)

    async def flush_now(self) -> None:
        """Write what waits at once, as a segment, beside whatever `run` is doing; for shutdown.

        Somebody may be writing the same records: twice is harmless. What fails stays queued.
        """
        batch = self._queue.batch()
        if batch:
            with contextlib.suppress(S3KVError):
                await self._write(batch, self._segment(batch))

    async def drain(self, timeout_s: float) -> int:
        """Take no more commits and write what is unfinished at once, as segments.

        Returns how many records could not be written within timeout_s; their commits fail with
        `Closed`. Works whether or not `run` is running.
        """
        self._is_closing = True
        flushing = asyncio.ensure_future(self._flush_rest())
        limit = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait((flushing, limit), return_when=asyncio.FIRST_COMPLETED)
        finally:
            flushing.cancel()
            limit.cancel()
            await asyncio.gather(flushing, limit, return_exceptions=True)
        lost_count = self._queue.fail_all(Closed("shut down before the index was written"))
        self.counts.records_given_up += lost_count
        if lost_count:
            logger.warning("s3kv: %d records of the index lost at shutdown", lost_count)
        return lost_count

    def _list_duties(self) -> list[Duty]:
        # Commits first: the only duty that somebody waits for.
        return [
            Duty("committing to the index", self._commit_batch, self._commit_due_s),
            Duty("giving up late commits", self._expire, self._expire_due_s),
            *super()._list_duties(),
            Duty("sequencing the index", self._sequence, self._sequence_due_s),
        ]

    def _commit_due_s(self, now_s: float) -> float:
        if not self._queue.record_count:
            return float("inf")
        advised_s = max(self.follower.interval_ms / 1_000, 1.0)
        return self._committed_s + min(advised_s, self._settings.interval_max_s)

    def _expire_due_s(self, now_s: float) -> float:
        return self._queue.next_deadline_s()

    def _sequence_due_s(self, now_s: float) -> float:
        takes_part = self.snapshot.opened and self.writes_allowed
        return self.sequencer.due(now_s) if takes_part else float("inf")

    async def _expire(self) -> None:
        late_count = self._queue.expire(self._clock.monotonic_s())
        self.counts.records_given_up += late_count

    async def _sequence(self) -> None:
        await self._perform(self.sequencer.act(self._now()))

    async def _commit_batch(self) -> None:
        await self._expire()
        batch = self._queue.batch()
        if batch:
            steps = self.sequencer.flush(merged(batch), self._now(), earliest_s(batch))
            await self._write(batch, steps)
            self._committed_s = self._clock.monotonic_s()

    async def _flush_rest(self) -> None:
        """Everything unfinished, also what another task is writing right now: twice is harmless."""
        pause_s = 0.1
        while True:
            await self._expire()
            batch = self._queue.batch()
            if not batch:
                return
            try:
                await self._write(batch, self._segment(batch))
            except Transient:
                await self._clock.sleep(pause_s)
                pause_s *= 2
            except (Denied, Mismatch, Closed):
                return

    def _segment(self, batch: list[Commit]) -> Steps[None]:
        return self.sequencer.write_segment(merged(batch), self._now(), earliest_s(batch))

    async def _write(self, batch: list[Commit], steps: Steps[None]) -> None:
        """Carry out a flush. `Transient` leaves the batch queued; what cannot pass fails it."""
        try:
            await self._claim_namespace()
            await self._perform(steps)
        except (Denied, Mismatch, Closed) as error:
            self._queue.fail(batch, error)
            raise
        self._queue.settle(batch)
        self.counts.commits += 1
        self.counts.records_committed += sum(len(each.records) for each in batch)

    async def _claim_namespace(self) -> None:
        """Nothing is written under a namespace before its fields lie there. Raises `Mismatch`."""
        if self._is_compared:
            return
        key, timeout_s = namespace_key(self._namespace.id), self._settings.request_timeout_s
        made = await self._store.create(key, self._namespace.document, timeout_s=timeout_s)
        if isinstance(made, Created):
            self._is_compared = True
        else:
            await self._compare()

    def _refuse(self, reason: str) -> None:
        super()._refuse(reason)
        self.counts.records_given_up += self._queue.fail_all(Mismatch(reason))
