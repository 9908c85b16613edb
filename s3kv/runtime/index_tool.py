"""One namespace's index in the hands of a command: read once, written by hand, followed by nobody.

Engines follow the index for ever (`index_client`); a command opens it, looks, perhaps commits
something, and ends. Both drive the same state machines of `core`; nothing is decided here.
"""

from __future__ import annotations

import os
import random
from typing import TypeVar

from s3kv.bucket.base import ObjectStore
from s3kv.core.follower import Follower
from s3kv.core.ids import NamespaceId
from s3kv.core.records import RECORDS_MAX, RecordSet
from s3kv.core.requests import Moment, Steps
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.snapshot import Snapshot
from s3kv.runtime.clock import Clock
from s3kv.runtime.perform import perform

T = TypeVar("T")

HEAD_TTL_S = 60.0
REQUEST_TIMEOUT_S = 20.0


class IndexTool:
    """Owned by one task, which calls one method at a time."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: NamespaceId,
        clock: Clock,
        settings: SequencerSettings | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """A writer of its own, under a new random id; nothing is read or written yet."""
        self.namespace = namespace
        self.store = store
        self.clock = clock
        self.sequencer = Sequencer(
            Follower(namespace, HEAD_TTL_S),
            os.urandom(16),
            settings or SequencerSettings(),
            random.Random(),
        )
        self._request_timeout_s = request_timeout_s

    @property
    def follower(self) -> Follower:
        """The reading side."""
        return self.sequencer.follower

    @property
    def snapshot(self) -> Snapshot:
        """What is known now."""
        return self.follower.snapshot

    def now(self) -> Moment:
        """This moment on both clocks."""
        return Moment(self.clock.unix_s(), self.clock.monotonic_s())

    async def perform(self, steps: Steps[T]) -> T:
        """Carry a protocol out against the store. Raises what it raises."""
        return await perform(steps, self.store, self.clock, self._request_timeout_s)

    async def open(self) -> None:
        """Read the log and the inbox up to the head. Raises `S3KVError`."""
        await self.perform(self.follower.open())

    async def follow(self) -> None:
        """Read what is new. Raises `S3KVError`."""
        await self.perform(self.follower.poll())

    async def commit(self, records: RecordSet, by_s: float = float("inf")) -> None:
        """Make records durable, in segments that whoever leads will fold. Raises `S3KVError`.

        by_s: monotonic seconds after which no request may carry them any more (R5).
        """
        for start in range(0, len(records), RECORDS_MAX):
            part = records.take(slice(start, start + RECORDS_MAX))
            await self.perform(self.sequencer.write_segment(part, self.now(), by_s))

    async def sequence(self, pause_bits: int | None = None) -> None:
        """Fold the inbox into a tick; pause_bits: None leaves the pause as it is.

        Only where the store is known to honour `If-None-Match`. Raises `S3KVError`.
        """
        await self.perform(self.sequencer.sequence(self.now(), pause_bits=pause_bits))
