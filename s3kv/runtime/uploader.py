"""Saves: staged slots to shards in the bucket, then one record in the index; one outcome per chunk.

A chunk is announced only after its shard is durable (R2), and only if that took less than half of
`min_age_s` (R5). Data PUTs are unconditional (R1): a HEAD saves the upload only when it finds a
young shard of the right size and nothing is known against it. The number of uploads waiting is
bounded by the slots they hold.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import BlockHash
from s3kv.core.keys import shard_key
from s3kv.core.shard import ShardIdentity, seal
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.ports import LentSlot

logger = logging.getLogger(__name__)

NONCE_BYTES = 16
CANCEL_S = 0.3


class SaveFate(Enum):
    """How a save ended."""

    UPLOADED = "uploaded"
    FOUND = "found"
    FAILED = "failed"
    TOO_SLOW = "too_slow"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """Bounds of an upload.

    put_timeout_s: for one shard with all retries; min_age_s: docs/adr/0002 (R5), an upload
    must be announced within half of it; concurrency: uploads in flight.
    """

    put_timeout_s: float = 60.0
    min_age_s: float = 3600.0
    concurrency: int = 4


class Announcer(Protocol):
    """The index writer as the uploader sees it."""

    async def announce(self, chunk_hash: BlockHash, block_count: int, announce_by_s: float) -> None:
        """Make a chunk visible to every engine; returns when that is durable.

        announce_by_s: monotonic time after which writing it down must not begin any more (R5).
        """
        ...

    async def disown(self, chunk_hash: BlockHash, block_count: int) -> None:
        """Record that a chunk is not there (any more)."""
        ...

    @property
    def found_age_max_s(self) -> float:
        """How old an object that is there already may be to be announced instead of uploaded: an
        older one may be swept before the announcement is durable (R5)."""
        ...

    @property
    def saves_paused(self) -> bool:
        """Whether the fleet was asked to archive nothing for now."""
        ...

    def knows(self, chunk_hash: BlockHash) -> bool:
        """Whether a fresh index already lists the chunk."""
        ...

    def knows_dead(self, chunk_hash: BlockHash) -> bool:
        """Whether the index says that the archive's copy is gone or wrong."""
        ...


@dataclass(slots=True)
class _Save:
    """One save; both its slot and its outcome are handed back exactly once."""

    identity: ShardIdentity
    slot: LentSlot
    give_back: Callable[[LentSlot], None]
    on_done: Callable[[SaveFate, str], None]
    rewrite: bool
    is_released: bool = False
    has_ended: bool = False

    def release(self) -> None:
        if not self.is_released:
            self.is_released = True
            self.give_back(self.slot)

    def end(self, fate: SaveFate, detail: str) -> None:
        self.release()
        if not self.has_ended:
            self.has_ended = True
            self.on_done(fate, detail)


class Uploader:
    """Runs saves on the loop thread; all methods are called there unless said otherwise."""

    def __init__(
        self,
        store: ObjectStore,
        announcer: Announcer,
        geometry: ShardGeometry,
        hashing: ThreadPoolExecutor,
        clock: Clock,
        settings: UploadSettings,
    ) -> None:
        """hashing: threads that compute checksums."""
        self._store = store
        self._announcer = announcer
        self._geometry = geometry
        self._hashing = hashing
        self._clock = clock
        self._settings = settings
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(
        self,
        identity: ShardIdentity,
        slot: LentSlot,
        give_back: Callable[[LentSlot], None],
        on_done: Callable[[SaveFate, str], None],
        *,
        rewrite: bool,
    ) -> None:
        """Archive the blocks lying in `slot`; oldest first.

        give_back(slot) as soon as its bytes are no longer needed; on_done(fate, detail) exactly
        once, on the loop thread.
        """
        save = _Save(identity, slot, give_back, on_done, rewrite)
        task = asyncio.create_task(self._run(save))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step runs none of its own clean-up.
        task.add_done_callback(lambda _: save.end(SaveFate.FAILED, "cancelled"))

    @property
    def pending_count(self) -> int:
        """Saves that have not ended."""
        return len(self._tasks)

    async def _run(self, save: _Save) -> None:
        started_s = self._clock.monotonic_s()
        try:
            try:
                async with self._gate:
                    fate = await self._store_shard(save)
            finally:
                save.release()
            if self._is_news(fate, save.identity.chunk_hash):
                fate = await self._announce(save.identity, fate, started_s)
        except S3KVError as error:
            save.end(SaveFate.FAILED, f"{type(error).__name__}: {error}")
        except Exception as error:
            logger.exception("s3kv: a save failed")
            save.end(SaveFate.FAILED, f"{type(error).__name__}: {error}")
        else:
            save.end(fate, "")

    def _is_news(self, fate: SaveFate, chunk_hash: BlockHash) -> bool:
        if fate is SaveFate.PAUSED:
            return False
        return fate is not SaveFate.FOUND or not self._announcer.knows(chunk_hash)

    async def _store_shard(self, save: _Save) -> SaveFate:
        if self._announcer.saves_paused:
            # Hundreds of megabytes may wait here: a pause that they escape would be obeyed minutes
            # later. What has been sent is announced, or it would be an orphan.
            return SaveFate.PAUSED
        if not save.rewrite and await self._is_there(save.identity):
            return SaveFate.FOUND
        sealing = asyncio.get_running_loop().run_in_executor(
            self._hashing,
            seal,
            save.slot.memory,
            self._geometry,
            save.identity,
            os.urandom(NONCE_BYTES),
        )
        try:
            body = await asyncio.shield(sealing)
        except asyncio.CancelledError:
            # The thread writes into the slot: it must have ended before the slot goes back.
            await asyncio.wait((sealing,))
            raise
        await self._store.put(_key(save.identity), body, timeout_s=self._settings.put_timeout_s)
        return SaveFate.UPLOADED

    async def _is_there(self, identity: ShardIdentity) -> bool:
        """Presence, asked again when the chunk leaves the queue (several engines, one prompt)."""
        if self._announcer.knows_dead(identity.chunk_hash):
            return False
        if self._announcer.knows(identity.chunk_hash):
            return True
        found = await self._store.stat(_key(identity), timeout_s=self._settings.put_timeout_s)
        return (
            not isinstance(found, Missing)
            and found.size == self._geometry.shard_bytes(len(identity.block_hashes))
            and found.age_s < self._announcer.found_age_max_s
        )

    async def _announce(
        self, identity: ShardIdentity, fate: SaveFate, started_s: float
    ) -> SaveFate:
        """R5: announce in time, or look again, or forget it."""
        bound_s = self._settings.min_age_s / 2
        if self._clock.monotonic_s() - started_s > bound_s:
            return SaveFate.TOO_SLOW
        block_count = len(identity.block_hashes)
        by_s = started_s + bound_s
        await self._announcer.announce(identity.chunk_hash, block_count, by_s)
        if self._clock.monotonic_s() - started_s <= bound_s:
            return fate
        found = await self._store.stat(_key(identity), timeout_s=self._settings.put_timeout_s)
        if isinstance(found, Missing):
            await self._announcer.disown(identity.chunk_hash, block_count)
            return SaveFate.TOO_SLOW
        return fate

    async def drain(self, timeout_s: float) -> int:
        """Wait for what is under way, cancel the rest; returns how many saves were lost."""
        if not self._tasks:
            return 0
        _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            # Bounded: an upload may be aborting its parts, and the index still has to be written.
            await asyncio.wait(late, timeout=CANCEL_S)
        return len(late)


def _key(identity: ShardIdentity) -> str:
    return shard_key(
        identity.namespace, identity.chunk_hash, identity.writer_index, identity.writer_count
    )
