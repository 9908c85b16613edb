"""The archive as the scheduler process sees it: an index reader and a prober on the loop thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.meter import Meter
from s3kv.config import Settings
from s3kv.connector.archive import close_store, index_settings, make_store
from s3kv.core.chunking import Chunk
from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.namespace import Namespace
from s3kv.core.snapshot import Snapshot
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexReader, IndexSettings
from s3kv.runtime.loop import LoopThread
from s3kv.runtime.prober import Prober

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 1.0


class SchedulerArchive:
    """One namespace, followed. Methods are called on the scheduling thread and never block."""

    def __init__(
        self,
        loop: LoopThread,
        store: ObjectStore,
        namespace: Namespace,
        geometry: ShardGeometry,
        writer_count: int,
        clock: Clock,
        index_settings: IndexSettings,
    ) -> None:
        """Start to follow at once; serving by probes meanwhile."""
        self.namespace = namespace
        self._loop = loop
        self._clock = clock
        self._reader = IndexReader(store, namespace, clock, index_settings)
        self._prober = Prober(store, namespace.id, geometry, writer_count)
        self._running = loop.submit(self._follow())

    async def _follow(self) -> None:
        try:
            await self._reader.run()
        except S3KVError as error:
            logger.error("s3kv: index of namespace %s: %s", self.namespace.id, error)  # noqa: TRY400

    @property
    def snapshot(self) -> Snapshot:
        """The index as it is known now; immutable. Not open where there is none."""
        snapshot = self._reader.snapshot
        return replace(snapshot, opened=False) if self._reader.is_unindexed else snapshot

    @property
    def refused(self) -> str:
        """Why the archive cannot be used, or the empty string."""
        return self._reader.refused or ""

    def wait_opened(self, timeout_s: float) -> None:
        """For start-up only: give the index a moment to open."""
        opening = self._loop.submit(self._reader.wait_opened())
        try:
            opening.result(timeout=timeout_s)
        except (TimeoutError, S3KVError) as error:
            opening.cancel()
            logger.warning("s3kv: index not open yet at start-up: %r", error)

    def probe(
        self, full: Sequence[Chunk], tail: Chunk | None, timeout_s: float
    ) -> Future[tuple[Chunk, ...]]:
        """Ask the bucket how much of a prompt is there."""
        return self._loop.submit(self._prober.longest_prefix(full, tail, timeout_s))

    def note(self, chunks: Sequence[tuple[BlockHash, int]], *, dead: bool) -> None:
        """Local knowledge, ahead of the ticks: chunks of this engine, or chunks it found gone."""
        if not chunks:
            return
        fps = fingerprints([chunk_hash for chunk_hash, _ in chunks])
        now_s = self._clock.unix_s()
        if dead:
            records = self.snapshot.dead_records(fps, now_s)
        else:
            blocks = np.array([block_count for _, block_count in chunks], np.uint16)
            records = self.snapshot.live_records(fps, blocks, now_s)
        self._loop.call(self._reader.note, records)

    def close(self) -> None:
        """Stop following."""
        self._running.cancel()


class SchedulerClients:
    """Loop thread and store of a scheduler's process: made on first use, kept over resets."""

    def __init__(self, writer_count: int, settings: Settings, clock: Clock) -> None:
        """writer_count: shards per chunk."""
        self._writer_count = writer_count
        self._settings = settings
        self._clock = clock
        self.loop: LoopThread | None = None
        self.store: ObjectStore | None = None

    def open(self, namespace: Namespace, geometry: ShardGeometry) -> SchedulerArchive:
        """Begin to follow a namespace."""
        if self.loop is None or self.store is None:
            self.loop = LoopThread("scheduler")
            self.store = make_store(self._settings, Meter())
        return SchedulerArchive(
            self.loop,
            self.store,
            namespace,
            geometry,
            self._writer_count,
            self._clock,
            index_settings(self._settings, geometry, self._writer_count),
        )

    def close(self) -> None:
        """Close both, each within a bound."""
        if self.loop is not None and self.store is not None:
            close_store(self.loop, self.store, CLOSE_TIMEOUT_S)
