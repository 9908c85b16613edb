"""The archive as a worker process sees it: loads, saves and the index writer of one namespace.

Lives on the worker's loop thread. Made anew for every namespace (a reset begins another epoch);
what is in flight in the old one ends there, under its old names (FAULTS 6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.connector.messages import ChunkAddress, FailedChunk, LoadJob
from s3kv.connector.store_check import Verdict
from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.keys import shard_key
from s3kv.core.namespace import Namespace
from s3kv.core.shard import ShardIdentity
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.downloader import Downloader, LoadOutcome, ShardPart
from s3kv.runtime.index_client import IndexSettings
from s3kv.runtime.index_writer import IndexWriter
from s3kv.runtime.ports import Deliverer, LentSlot, Slots
from s3kv.runtime.uploader import SaveFate, Uploader, UploadSettings

logger = logging.getLogger(__name__)

UPLOADS_SHARE = 0.8
"""Of the time for draining: uploads; the rest is for the index."""
FLUSH_EVERY_S = 0.05
STAT_S = 10.0

WRITER_INDEX, WRITER_COUNT = 0, 1
"""One rank: engines with more are refused at start-up."""


class WorkerArchive:
    """One namespace, loaded from and saved to. Owned by the loop thread."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: Namespace,
        geometry: ShardGeometry,
        slots: Slots,
        hashing: ThreadPoolExecutor,
        clock: Clock,
        index_settings: IndexSettings,
        concurrency: int,
    ) -> None:
        """concurrency: shard bodies in flight; saves get half of it, so that loads find a place."""
        self.namespace = namespace
        self._clock = clock
        self._store = store
        self._announce_s = index_settings.min_age_s / 2
        self._writer = IndexWriter(store, namespace, clock, index_settings)
        self._downloader = Downloader(store, slots, geometry, hashing, concurrency)
        self._uploader = Uploader(
            store,
            self,
            geometry,
            hashing,
            clock,
            UploadSettings(concurrency=max(1, concurrency // 2)),
        )
        self._writer.writes_allowed = False
        self._is_names_only = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the index; on the loop thread, as everything from here on."""
        self._running = asyncio.create_task(self._follow())

    def judge(self, verdict: Verdict) -> None:
        """What the store can do is known: if it can carry an index, take part in sequencing it."""
        self._is_names_only = verdict.names_only
        self._writer.writes_allowed = not (verdict.read_only or verdict.names_only)

    async def _follow(self) -> None:
        try:
            await self._writer.run()
        except S3KVError as error:
            logger.error("s3kv: index of namespace %s: %s", self.namespace.id, error)  # noqa: TRY400

    @property
    def refused(self) -> str:
        """Why the archive cannot be written, or the empty string."""
        return self._writer.refused or ""

    def identity(self, address: ChunkAddress) -> ShardIdentity:
        """This rank's shard of a chunk."""
        return ShardIdentity(
            namespace=self.namespace.id,
            chunk_hash=address.chunk_hash,
            parent_hash=address.parent_hash,
            block_hashes=address.block_hashes,
            writer_index=WRITER_INDEX,
            writer_count=WRITER_COUNT,
        )

    async def load(self, job: LoadJob, deliverer: Deliverer, deadline_s: float) -> LoadOutcome:
        """Carry out one load."""
        parts = [ShardPart(self.identity(p.address), p.first_block, p.block_ids) for p in job.parts]
        return await self._downloader.load(parts, deliverer, deadline_s)

    def save(
        self,
        address: ChunkAddress,
        slot: LentSlot,
        give_back: Callable[[LentSlot], None],
        on_done: Callable[[SaveFate, str], None],
        *,
        rewrite: bool,
    ) -> None:
        """Archive the blocks lying in a slot."""
        self._uploader.submit(self.identity(address), slot, give_back, on_done, rewrite=rewrite)

    # -------------------------------------------------- Announcer, for the uploader
    async def announce(self, chunk_hash: BlockHash, block_count: int, announce_by_s: float) -> None:
        """Make a chunk visible; returns when that is durable.

        Without an index its name says it all: only the namespace has to be described.
        """
        fps = fingerprints([chunk_hash])
        blocks = np.array([block_count], np.uint16)
        now_s = self._clock.unix_s()
        records = self._writer.snapshot.live_records(fps, blocks, now_s)
        if self._is_names_only:
            await self._writer.describe_namespace()
            self._writer.note(records)
            return
        await self._writer.commit(records, announce_by_s)

    async def disown(self, chunk_hash: BlockHash, block_count: int) -> None:
        """Record that a chunk is not there."""
        await self.record([(chunk_hash, block_count)], dead=True)

    @property
    def found_age_max_s(self) -> float:
        """Without an index nobody sweeps: what is there may be as old as it likes."""
        return float("inf") if self._is_names_only else self._announce_s

    @property
    def saves_paused(self) -> bool:
        """Whether the fleet was asked to archive nothing for now."""
        return self._writer.snapshot.pause.saves

    def knows(self, chunk_hash: BlockHash) -> bool:
        """Whether a fresh index lists the chunk; without one a look at its name has to tell."""
        snapshot = self._writer.snapshot
        fresh = snapshot.is_fresh(self._clock.monotonic_s()) and not self._is_names_only
        return fresh and bool(snapshot.present(fingerprints([chunk_hash]))[0])

    def knows_dead(self, chunk_hash: BlockHash) -> bool:
        """Whether the index says that the archive's copy is gone, wrong or condemned."""
        return bool(self._writer.snapshot.dead(fingerprints([chunk_hash]))[0])

    async def record(self, chunks: Sequence[tuple[BlockHash, int]], *, dead: bool) -> None:
        """Commit last uses (touches) or losses of chunks."""
        if not chunks:
            return
        fps = fingerprints([chunk_hash for chunk_hash, _ in chunks])
        snapshot, now_s = self._writer.snapshot, self._clock.unix_s()
        if dead:
            records = snapshot.dead_records(fps, now_s)
            # Known here before it is written: a rewrite in the same second has to win over it.
            self._writer.note(records)
            if not self._is_names_only:
                await self._writer.commit(records)
            return
        there = snapshot.present(fps)
        # R8: a view that may be out of date must not vouch for the dead.
        fresh = snapshot.is_fresh(self._clock.monotonic_s()) and not self._is_names_only
        if fresh and there.any():
            by_s = self._clock.monotonic_s() + self._announce_s
            blocks = np.array([block_count for _, block_count in chunks], np.uint16)[there]
            await self._writer.commit(snapshot.live_records(fps[there], blocks, now_s), by_s)
            if self._clock.monotonic_s() > by_s:
                await self._look_after(chunks)

    async def _look_after(self, chunks: Sequence[tuple[BlockHash, int]]) -> None:
        """Their use was written down so late that a sweep may have come before it (R5)."""
        for chunk_hash, block_count in chunks:
            key = shard_key(self.namespace.id, chunk_hash, WRITER_INDEX, WRITER_COUNT)
            if isinstance(await self._store.stat(key, timeout_s=STAT_S), Missing):
                await self.disown(chunk_hash, block_count)

    async def record_hints(
        self,
        forgotten: Sequence[tuple[BlockHash, int]],
        touched: Sequence[tuple[BlockHash, int]],
    ) -> None:
        """Commit losses and last uses; they are hints, so what cannot be written is let go."""
        try:
            await self.record(forgotten, dead=True)
            await self.record(touched, dead=False)
        except S3KVError as error:
            count = len(forgotten) + len(touched)
            logger.info("s3kv: up to %d index records were not written: %s", count, error)

    @property
    def pending_saves(self) -> int:
        """Saves that have not ended; any thread."""
        return self._uploader.pending_count

    async def drain(self, timeout_s: float) -> int:
        """Finish uploads and publish them, without waiting for the usual pace of commits.

        Returns how many saves were lost. Loads that still run are given up.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        uploads = asyncio.ensure_future(self._uploader.drain(timeout_s * UPLOADS_SHARE))
        loads = asyncio.ensure_future(self._downloader.close())
        while not uploads.done():
            await self._writer.flush_now()
            await asyncio.wait((uploads,), timeout=FLUSH_EVERY_S)
        await asyncio.wait((loads,), timeout=max(0.0, end_s - loop.time()))
        await self._writer.drain(max(FLUSH_EVERY_S, end_s - loop.time()))
        loads.cancel()
        if self._running is not None:
            self._running.cancel()
        return uploads.result()


def failed_chunks(job: LoadJob, outcome: LoadOutcome) -> tuple[FailedChunk, ...]:
    """The chunks to blame for a load that fell short, each with its reason; also logs them."""
    late = job.parts[outcome.arrived_count :]
    if late and not outcome.faults:
        # An error of our own: nobody knows about the chunk, but it is not offered again at once.
        first = late[0].address
        count = len(first.block_hashes)
        return (FailedChunk(job.namespace, first.chunk_hash, count, "internal", lost=False),)
    failed = []
    for index, fault in outcome.faults.items():
        address = job.parts[index].address
        name = address.chunk_hash.hex()[:16]
        logger.warning("s3kv: chunk %s was not loaded: %s", name, fault.word)
        failed.append(
            FailedChunk(
                job.namespace,
                address.chunk_hash,
                len(address.block_hashes),
                fault.word,
                fault.lost,
            )
        )
    return tuple(failed)
