"""Commits to the index, folds everybody's commits when it leads, and keeps the log short.

Drives `core.sequencer` and `core.compactor` beside the reader's `core.follower`; see `duties` for
what happens on errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random

from s3kv.bucket.base import Created, ObjectStore
from s3kv.core.compactor import Compactor
from s3kv.core.forgetting import Limits
from s3kv.core.keys import namespace_key
from s3kv.core.namespace import Namespace
from s3kv.core.records import RecordSet
from s3kv.core.requests import Steps
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.errors import Closed, Corrupt, Denied, Mismatch, NewerFormat, S3KVError, Transient
from s3kv.runtime.clock import Clock
from s3kv.runtime.commit_queue import Commit, CommitQueue, earliest_s, merged
from s3kv.runtime.duties import Duties, Duty
from s3kv.runtime.index_client import IndexReader, IndexSettings

logger = logging.getLogger(__name__)


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
                limits=Limits(
                    ttl_s=settings.ttl_s,
                    max_bytes=settings.max_bytes,
                    bytes_per_block=settings.bytes_per_block,
                ),
                takes_lead=settings.takes_lead,
                segments_per_s=settings.segments_per_s,
                announce_s=settings.min_age_s / 2,
            ),
            self._rng,
        )
        self._queue = CommitQueue(settings.queued_records_max)
        self._compactor = Compactor(self.follower, self.sequencer.writer, settings.compactor)
        # Beside the other duties: reading and writing a large run must not hold up a commit.
        self.upkeep = Duties(
            [Duty("compacting the index", self._compact, self._compact_due_s)],
            clock,
            self._rng,
            settings.backoff,
            settings.denied_level,
        )
        self._committed_s = float("-inf")
        self._is_closing = False
        self.writes_allowed = True
        """Whether to take part in sequencing; off until the store's conditional PUT is proved."""

    async def run(self) -> None:
        """As a reader; commits, sequences and compacts as well."""
        upkeep = asyncio.create_task(self.upkeep.run())
        try:
            await super().run()
        finally:
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)

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

    def _compact_due_s(self, now_s: float) -> float:
        # Who leads has folded the inbox a moment ago, which is what the compactor relies on.
        may = self.sequencer.leads and self.writes_allowed and self.snapshot.is_fresh(now_s)
        return self._compactor.due(now_s) if may else float("inf")

    async def _compact(self) -> None:
        written = self._compactor.counts.runs_written
        try:
            await self._perform(self._compactor.act(self._now()))
        except NewerFormat as error:
            self._newer = error  # the index is refused as if it had been read by the follower
            self.duties.wake()
        except (Corrupt, Mismatch) as error:
            logger.warning("s3kv: the index is not compacted: %s", error)
        if self._compactor.counts.runs_written > written:
            logger.info("s3kv: index compacted at tick %d", self.snapshot.head)

    async def _expire(self) -> None:
        late_count = self._queue.expire(self._clock.monotonic_s())
        self.counts.records_given_up += late_count

    async def _sequence(self) -> None:
        await self._perform(self.sequencer.act(self._now()))
        self._wake_upkeep()

    def _wake_upkeep(self) -> None:
        # It sleeps until something is due, which for who did not lead was never.
        now_s = self._clock.monotonic_s()
        if self._compact_due_s(now_s) <= now_s:
            self.upkeep.wake()

    async def _commit_batch(self) -> None:
        await self._expire()
        batch = self._queue.batch()
        if batch:
            steps = self.sequencer.flush(merged(batch), self._now(), earliest_s(batch))
            await self._write(batch, steps)
            self._committed_s = self._clock.monotonic_s()
            self._wake_upkeep()

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

    async def describe_namespace(self) -> None:
        """Write the namespace's fields where the store has no conditional PUT. Raises as `commit`.

        Whoever writes them writes the same bytes, so an unconditional PUT cannot do harm.
        """
        if not self._is_compared:
            await self._compare()
        if not self._is_compared:
            key, timeout_s = namespace_key(self._namespace.id), self._settings.request_timeout_s
            await self._store.put(key, self._namespace.document, timeout_s=timeout_s)
            self._is_compared = True

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
