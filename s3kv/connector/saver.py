"""A rank's saves: from the engine's blocks into a slot, and from there to the archive.

Every save is acknowledged as staged exactly once, however it ends, so that its pins drop; a slot is
always in one pair of hands. Nothing is uploaded before the store's capabilities are known: where it
has no conditional PUT there must be no index (ADR 0004).
"""

from __future__ import annotations

import logging

from s3kv.connector.messages import SaveJob
from s3kv.connector.outbox import Outbox
from s3kv.connector.staging import Staging
from s3kv.connector.worker_archive import WorkerArchive
from s3kv.device.copier import Fence
from s3kv.device.slots import Purpose, Slot
from s3kv.errors import S3KVError
from s3kv.runtime.loop import LoopThread
from s3kv.runtime.uploader import SaveFate

logger = logging.getLogger(__name__)


class Saver:
    """`stage` is called on the engine's thread, `judge` and `give_up` on the loop thread."""

    def __init__(self, staging: Staging, loop: LoopThread, outbox: Outbox) -> None:
        """Saves wait for `judge` before they are uploaded."""
        self._staging = staging
        self._loop = loop
        self._outbox = outbox
        self._waiting: list[tuple[SaveJob, Slot, WorkerArchive]] = []
        self.read_only: str | None = None
        """Why nothing may be written; empty if it may, None as long as that is not known."""

    def stage(self, archive: WorkerArchive, job: SaveJob, fence: Fence | None) -> None:
        """Copy a finished chunk into a slot; what finds no slot is dropped and counted."""
        if self.read_only or archive.refused:
            self._outbox.dropped([job.job_id], "not_writable")
            return
        pool, geometry = self._staging.pool, self._staging.geometry
        slot = pool.try_lend(Purpose.SAVE)
        if slot is None:
            self._outbox.dropped([job.job_id], "pool_full")
            return
        end = geometry.shard_bytes(len(job.block_ids))
        try:
            self._staging.copier.stage(
                job.block_ids,
                slot.tensor[geometry.header_bytes : end],
                fence,
                lambda error: self._staged(job, slot, archive, error),
            )
        except S3KVError:
            pool.give_back(slot)
            self._outbox.dropped([job.job_id], "closed")

    def _staged(
        self, job: SaveJob, slot: Slot, archive: WorkerArchive, error: BaseException | None
    ) -> None:
        """On the copy thread: the source blocks are free; the upload may begin."""
        if error is not None or not self._loop.alive:
            self._staging.give_back(slot)
            self._outbox.dropped([job.job_id], "copy_failed")
            return
        self._outbox.staged(job.job_id)
        self._loop.call(self._upload, job, slot, archive)

    def _upload(self, job: SaveJob, slot: Slot, archive: WorkerArchive) -> None:
        if self.read_only is None:
            self._waiting.append((job, slot, archive))
            return
        if self.read_only:
            self._lose(job, slot, "not_writable")
            return
        try:
            archive.save(
                job.address,
                slot,
                self._staging.give_back,
                lambda fate, detail: self._ended(job, fate, detail),
                rewrite=job.rewrite,
            )
        except Exception:
            logger.exception("s3kv: a save could not begin")
            self._lose(job, slot, "error")

    def _lose(self, job: SaveJob, slot: Slot, word: str) -> None:
        self._staging.give_back(slot)
        self._outbox.unsaved(job.job_id, word)

    def _ended(self, job: SaveJob, fate: SaveFate, detail: str) -> None:
        if fate in (SaveFate.UPLOADED, SaveFate.FOUND):
            self._outbox.saved(job.job_id, fate.value)
            return
        self._outbox.unsaved(job.job_id, fate.value)
        if fate is SaveFate.PAUSED:
            return
        name = job.address.chunk_hash.hex()[:16]
        logger.warning("s3kv: chunk %s not saved: %s %s", name, fate.value, detail)

    def judge(self, read_only: str) -> None:
        """What the store can do is known now: saves that waited go on, or are given up."""
        self.read_only = read_only
        waiting, self._waiting = self._waiting, []
        for job, slot, archive in waiting:
            self._upload(job, slot, archive)

    def give_up(self) -> int:
        """The end: saves that still wait for a verdict are lost; returns how many."""
        waiting, self._waiting = self._waiting, []
        for job, slot, _ in waiting:
            self._lose(job, slot, "store_unknown")
        return len(waiting)
