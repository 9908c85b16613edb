"""A sweeper as a process of a storm has it, or who looks at what the storm left."""

from __future__ import annotations

import os
import random

from s3kv.bucket.base import ObjectStore
from s3kv.core.compactor import Compactor
from s3kv.core.follower import Follower
from s3kv.core.requests import Moment
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.snapshot import Snapshot
from s3kv.core.sweep import FOLDERS, SweepRules
from s3kv.core.sweeper import Deeds, Sweeper
from s3kv.runtime.clock import Clock
from s3kv.runtime.perform import perform
from tests.fakes.storm_spec import CHUNK_BLOCKS, NAMESPACE, SHARD_BYTES, Times

FOLDERS_AT_ONCE = 32
"""Few enough to be listed and dealt with long before what is known of them is too old."""


class StormSweeper:
    """Owned by one task."""

    def __init__(self, store: ObjectStore, times: Times) -> None:
        self._store = store
        self._times = times
        self._clock = Clock()
        follower = Follower(NAMESPACE.id, times.head_ttl_s)
        sequencer = Sequencer(follower, os.urandom(16), SequencerSettings(), random.Random(0))
        rules = SweepRules(grace_s=times.grace_s, min_age_s=times.min_age_s)
        blocks = {SHARD_BYTES: CHUNK_BLOCKS}
        self._next = 0
        self._follower = follower
        self._sweeper = Sweeper(sequencer, blocks.get, rules)

    @property
    def snapshot(self) -> Snapshot:
        """What is known now."""
        return self._follower.snapshot

    @property
    def deeds(self) -> Deeds:
        """What was done so far."""
        return self._sweeper.deeds

    @property
    def problem(self) -> str:
        """Why nothing may be swept, or the empty string; only another sweeper may get rid of it."""
        return self._sweeper.problem

    @property
    def is_round(self) -> bool:
        """Whether the last folder has had its turn, and the first is next."""
        return self._next == 0

    async def open(self) -> None:
        """Read the index. Raises `S3KVError`."""
        await perform(self._sweeper.open(), self._store, self._clock, self._times.request_s)

    async def compact(self) -> None:
        """Merge the log, without what nobody can read. Raises `S3KVError`."""
        compactor = Compactor(self._follower, os.urandom(16), self._times.compactor)
        doing = compactor.act(self._now())
        await perform(doing, self._store, self._clock, self._times.request_s)

    async def sweep_all(self) -> None:
        """Go over every folder once, unless there is a problem. Raises as `sweep_next`."""
        self._next = 0
        for _ in range(0, len(FOLDERS), FOLDERS_AT_ONCE):
            await self.sweep_next()

    async def sweep_next(self) -> None:
        """Go over some folders, the next time over the next, unless there is a problem.

        Raises `S3KVError`: what is left shows up next time.
        """
        folders = FOLDERS[self._next : self._next + FOLDERS_AT_ONCE]
        self._next = (self._next + FOLDERS_AT_ONCE) % len(FOLDERS)
        planning = self._sweeper.plan(folders, self._now())
        plans = await perform(planning, self._store, self._clock, self._times.request_s)
        for plan in plans if not self.problem else ():
            doing = self._sweeper.carry_out(plan, self._now())
            await perform(doing, self._store, self._clock, self._times.request_s)

    def _now(self) -> Moment:
        return Moment(self._clock.unix_s(), self._clock.monotonic_s())
