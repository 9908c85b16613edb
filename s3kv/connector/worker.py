"""The worker side: takes up plans on the engine's thread, does the work on its own threads.

The engine's thread only enqueues. Every load of a plan ends in exactly one `Outbox.load_ended`;
every save is acknowledged as staged exactly once, however it ends, so that its pins drop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.meter import Meter
from s3kv.config import Settings
from s3kv.connector.archive import BODY_THREADS, index_settings, make_store
from s3kv.connector.identity import EngineFacts, describe_layout
from s3kv.connector.messages import (
    LayoutHandshake,
    LoadJob,
    NamespaceTicket,
    Plan,
    SaveJob,
)
from s3kv.connector.outbox import Outbox
from s3kv.connector.saver import Saver
from s3kv.connector.staging import FencedDeliverer, Staging, make_staging
from s3kv.connector.store_check import Verdict, look_at_store, warm_up
from s3kv.connector.worker_archive import WRITER_COUNT, WorkerArchive, failed_chunks
from s3kv.core.namespace import LayoutDescriptor, parse_namespace_document
from s3kv.device.copier import Fence
from s3kv.errors import Corrupt, Mismatch, S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.downloader import LoadOutcome
from s3kv.runtime.loop import THREAD_PREFIX, LoopThread

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)

HASH_THREADS = 2
SHUTDOWN_S = 3.2
"""Copies, uploads and commits after the engine said stop. With closing the loop that stays below
4 s; vLLM kills the process after 5."""
COPIES_S = 0.5
"""Of these, for copies still queued."""
LOOP_CLOSE_S = 0.2
VERDICT_SHARE = 0.4
"""Of the time for closing: how long saves may still wait to hear what the store can do."""


class WorkerSide:
    """State of one rank. Methods are hooks on the engine's thread unless they say otherwise."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        facts: EngineFacts,
        settings: Settings,
    ) -> None:
        """Nothing is started before the caches are registered."""
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._facts = facts
        self._settings = settings
        self._clock = Clock()
        self._meter = Meter()
        self._refusal = facts.refusal
        self._layout: LayoutDescriptor | None = None
        self._staging: Staging | None = None
        self._loop: LoopThread | None = None
        self._store: ObjectStore | None = None
        self._hashing: ThreadPoolExecutor | None = None
        self._archive: WorkerArchive | None = None
        self._saver: Saver | None = None
        self._verdict: Verdict | None = None
        self._asleep = False
        self._running: dict[str, asyncio.Task[object]] = {}
        self._background: set[asyncio.Task[object]] = set()
        self.outbox = Outbox()

    # -------------------------------------------------------------- start-up
    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """The engine's caches exist: allocate slots, start the threads.

        Raises `ConfigError` if `staging_bytes` cannot hold one shard.
        """
        if self._refusal:
            self.outbox.layout(self.handshake())
            return
        try:
            staging = make_staging(self._kv_cache_config, kv_caches, self._facts, self._settings)
        except Mismatch as error:
            self._refusal = f"the KV cache lies in memory in a way not supported yet: {error}"
            self.outbox.layout(self.handshake())
            return
        self._layout = describe_layout(self._vllm_config, self._kv_cache_config, kv_caches)
        self._staging = staging
        self._hashing = ThreadPoolExecutor(HASH_THREADS, thread_name_prefix=f"{THREAD_PREFIX}hash")
        self._loop = LoopThread("worker")
        self._saver = Saver(staging, self._loop, self.outbox)
        self._store = make_store(self._settings, self._meter)
        self._loop.submit(warm_up(self._store))
        self.outbox.layout(self.handshake())
        logger.info(
            "s3kv: shards of %.1f MiB (%d tokens), %d slots",
            staging.geometry.slot_bytes / 2**20,
            staging.geometry.chunk_blocks * self._facts.block_tokens,
            staging.pool.slot_count,
        )

    def handshake(self) -> LayoutHandshake:
        """This rank's layout, or why it takes no part."""
        if self._layout is None or self._staging is None:
            refusal = self._refusal or "no KV cache was registered"
            return LayoutHandshake(None, None, refusal, self._facts.rank)
        return LayoutHandshake(self._layout, self._staging.geometry, "", self._facts.rank)

    def _open(self, ticket: NamespaceTicket) -> None:
        """Follow the scheduler's namespace if it describes our bytes; refuse it otherwise."""
        namespace = parse_namespace_document(ticket.document)
        if self._layout not in namespace.fields.layout:
            raise Mismatch(f"namespace {namespace.id} describes another KV cache layout than ours")
        previous = self._archive
        if previous is None or previous.namespace.id != namespace.id:
            assert self._staging is not None
            assert self._loop is not None
            assert self._store is not None
            assert self._hashing is not None
            archive = WorkerArchive(
                self._store,
                namespace,
                self._staging.geometry,
                self._staging,
                self._hashing,
                self._clock,
                # The scheduler side meets the same refusal, and complains for both.
                replace(
                    index_settings(self._settings, self._staging.geometry, WRITER_COUNT),
                    denied_level=logging.INFO,
                ),
                BODY_THREADS,
            )
            self._archive = archive
            self._loop.call(self._begin, archive, previous)
        self.outbox.opened(namespace.id)

    def _begin(self, archive: WorkerArchive, previous: WorkerArchive | None) -> None:
        """On the loop thread: start to follow; let an older namespace run out."""
        archive.start()
        assert self._store is not None
        assert self._saver is not None
        if self._verdict is not None:
            archive.judge(self._verdict)
        task: asyncio.Task[object]
        if previous is None:
            probing = self._probe(self._store, self._saver, archive.namespace.id)
            task = asyncio.create_task(probing)
        else:
            task = asyncio.create_task(previous.drain(SHUTDOWN_S))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _probe(self, store: ObjectStore, saver: Saver, namespace_id: str) -> None:
        """Until the store has shown what it can do, saves wait in their slots."""
        verdict = await look_at_store(store, self._settings, namespace_id, self._clock)
        self._verdict = verdict
        if self._archive is not None:
            self._archive.judge(verdict)
        saver.judge(verdict.read_only)
        if verdict.read_only:
            self.outbox.read_only(verdict.read_only)

    # ----------------------------------------------------------------- loads
    def open(self, plan: Plan) -> None:
        """Take up a step's namespace and records, and what no longer needs to be fetched."""
        if plan.ticket is not None and not self._refusal:
            try:
                self._open(plan.ticket)
            except (Mismatch, Corrupt) as error:
                # The two sides do not mean the same bytes (FAULTS 7): both must stop.
                self._refusal = str(error)
                refused = LayoutHandshake(None, None, self._refusal, self._facts.rank)
                self.outbox.layout(refused)
        if plan.ended and self._loop is not None:
            self._loop.call(self._cancel, plan.ended)
        if plan.forgotten or plan.touched:
            self._record(plan)

    def _cancel(self, request_ids: Iterable[str]) -> None:
        """On the loop thread: these requests are gone; their loads end and report at once."""
        for request_id in request_ids:
            running = self._running.get(request_id)
            if running is not None:
                running.cancel()

    def start_load(self, job: LoadJob) -> None:
        """Begin one load; its end is reported whatever happens."""
        archive, staging, loop = self._archive, self._staging, self._loop
        if (
            archive is None
            or staging is None
            or loop is None
            or self._asleep
            or self._refusal
            or archive.namespace.id != job.namespace
        ):
            self.fail(job.request_id, job.block_ids)
            return
        deliverer = FencedDeliverer(staging.copier, staging.copier.fence())
        loop.submit(self._load(archive, job, deliverer))

    def fail(self, request_id: str, block_ids: Collection[int]) -> None:
        """Report a load as failed without having tried."""
        self.outbox.load_ended(request_id, block_ids)

    async def _load(self, archive: WorkerArchive, job: LoadJob, deliverer: FencedDeliverer) -> None:
        """On the loop thread."""
        started_s = time.monotonic()
        outcome, wanted = LoadOutcome(0, 0), True
        # Registered here, so that only a load that has begun, and hence reports, is cancelled.
        task = asyncio.current_task()
        assert task is not None
        self._running[job.request_id] = task
        try:
            outcome = await archive.load(job, deliverer, self._settings.load_deadline_s)
        except asyncio.CancelledError:
            wanted = False
            raise
        except Exception:
            logger.exception("s3kv: load of request %s failed", job.request_id)
        finally:
            self._running.pop(job.request_id, None)
            # Cancelled or not: what has not arrived must not pass for loaded. A cancelled load may
            # have a live request (a reset ends the old namespace's loads).
            late = job.parts[outcome.arrived_count :]
            self.outbox.load_ended(
                job.request_id,
                [block_id for part in late for block_id in part.block_ids],
                failed_chunks(job, outcome) if wanted else (),
                time.monotonic() - started_s,
                outcome.received_bytes,
            )

    def _record(self, plan: Plan) -> None:
        writable = self._saver is not None and self._saver.read_only == ""
        if self._archive is not None and self._loop is not None and writable:
            recording = self._archive.record_hints(plan.forgotten, plan.touched)
            self._loop.submit(recording)

    # ----------------------------------------------------------------- saves
    def fence(self) -> Fence | None:
        """Mark the engine's work so far; saves of this step copy after it."""
        return self._staging.copier.fence() if self._staging is not None else None

    def stage(self, job: SaveJob, fence: Fence | None) -> None:
        """Archive a finished chunk; what cannot be is dropped and counted."""
        archive = self._archive
        foreign = archive is None or archive.namespace.id != job.namespace
        if archive is None or self._saver is None or foreign or self._asleep:
            self.outbox.dropped([job.job_id], "not_open")
        else:
            self._saver.stage(archive, job, fence)

    # ------------------------------------------------------- sleep and shutdown
    def suspend(self) -> None:
        """The caches are about to go away: begin no copies, let those under way end."""
        self._asleep = True
        if self._staging is not None:
            self._staging.copier.drain(COPIES_S)

    def resume(self) -> None:
        """The caches are back where they were."""
        self._asleep = False

    def shutdown(self) -> None:
        """Upload and publish what is staged, within 4 s; count and log what is lost."""
        end_s = time.monotonic() + SHUTDOWN_S
        lost = self._staging.copier.close(COPIES_S) if self._staging is not None else 0
        if self._loop is not None and self._loop.alive:
            lost += self._close_within(end_s, self._loop)
            self._loop.close(LOOP_CLOSE_S)
        if self._hashing is not None:
            self._hashing.shutdown(wait=False, cancel_futures=True)
        if self._staging is not None:
            self._staging.pool.close()
            self._log_summary(lost)

    def _close_within(self, end_s: float, loop: LoopThread) -> int:
        """Returns how many chunks were lost."""
        left_s = end_s - time.monotonic()
        try:
            return loop.submit(self._close(left_s)).result(timeout=left_s + LOOP_CLOSE_S)
        except (TimeoutError, S3KVError) as error:
            logger.warning("s3kv: shutdown cut short: %r", error)
            return self._archive.pending_saves if self._archive is not None else 0

    async def _close(self, timeout_s: float) -> int:
        """On the loop thread."""
        end_s = asyncio.get_running_loop().time() + timeout_s - LOOP_CLOSE_S
        if self._background:
            # An engine that stops right after its first prompt: the store's verdict is on its way.
            await asyncio.wait(set(self._background), timeout=timeout_s * VERDICT_SHARE)
        lost = self._saver.give_up() if self._saver is not None else 0
        for task in self._background:
            task.cancel()
        if self._archive is not None:
            lost += await self._archive.drain(end_s - asyncio.get_running_loop().time())
        if self._store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOP_CLOSE_S):
                    await self._store.close()
        return lost

    def _log_summary(self, lost: int) -> None:
        if lost:
            logger.warning("s3kv: %d chunks were not saved before shutdown", lost)
        traffic = self._meter.snapshot()
        summary = {"side": "worker", "lost": lost, **self.outbox.counts}
        summary["requests"] = dict(traffic.requests)
        logger.info("s3kv: summary %s", json.dumps(summary, sort_keys=True))
