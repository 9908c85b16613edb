"""Loads: shard parts from the bucket, verified, into device blocks; one outcome per load.

A load ends in exactly one `LoadOutcome`, at the latest when its deadline has passed and the copies
under way have ended. What counts is the leading run of parts that arrived: the engine recomputes
from the first block that is missing, so later parts are given up as soon as an earlier one failed.
A late GET may still hold its slot, but never writes into a device block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.core.geometry import ShardGeometry
from s3kv.core.keys import shard_key
from s3kv.core.shard import ShardIdentity, verify_blocks, verify_header
from s3kv.errors import Corrupt, Denied, Mismatch, NewerFormat, S3KVError, Throttled
from s3kv.runtime.ports import Deliverer, LentSlot, Slots

logger = logging.getLogger(__name__)

SKIP_AT_BYTES = 1 << 20
"""Parts are read from byte 0 together with the header unless that would waste more than this."""


class LoadFault(Enum):
    """Why a part did not arrive; `lost` means that the archive's copy itself is gone or wrong."""

    MISSING = ("missing", True)
    CORRUPT = ("corrupt", True)
    OTHER_IDENTITY = ("other_identity", True)
    NEWER_FORMAT = ("newer_format", False)  # others can read it: it is not ours to report dead
    UNAVAILABLE = ("unavailable", False)
    THROTTLED = ("throttled", False)
    DENIED = ("denied", False)
    DEADLINE = ("deadline", False)
    NO_SLOT = ("no_slot", False)
    COPY_FAILED = ("copy_failed", False)
    GIVEN_UP = ("given_up", False)

    def __init__(self, word: str, lost: bool) -> None:
        """word: label of the miss counter."""
        self.word = word
        self.lost = lost


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Blocks [first_block, first_block + len(block_ids)) of one shard, and where they go."""

    identity: ShardIdentity
    first_block: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """How a load ended: parts[:arrived_count] are in their blocks, verified; nothing later counts.

    faults: index of a part -> why it failed (real failures only, not parts given up after them).
    """

    arrived_count: int
    received_bytes: int
    faults: dict[int, LoadFault] = field(default_factory=dict)


class _Faulted(Exception):
    def __init__(self, fault: LoadFault) -> None:
        super().__init__(fault.word)
        self.fault = fault


@dataclass(slots=True)
class _Transfer:
    """One load in progress. Owned by the loop thread; `wanted` is also read by the copy thread."""

    deliverer: Deliverer
    wanted: bool = True
    received_bytes: int = 0
    copies: set[asyncio.Future[bool]] = field(default_factory=set)


def fault_of(error: S3KVError) -> LoadFault:
    """The word for a store's or a verifier's error."""
    match error:
        case Corrupt():
            return LoadFault.CORRUPT
        case NewerFormat():
            return LoadFault.NEWER_FORMAT
        case Mismatch():
            return LoadFault.OTHER_IDENTITY
        case Throttled():
            return LoadFault.THROTTLED
        case Denied():
            return LoadFault.DENIED
        case _:
            return LoadFault.UNAVAILABLE


class Downloader:
    """Runs loads on the loop thread; all methods are called there."""

    def __init__(
        self,
        store: ObjectStore,
        slots: Slots,
        geometry: ShardGeometry,
        hashing: ThreadPoolExecutor,
        concurrency: int,
    ) -> None:
        """concurrency: GETs in flight over all loads; hashing: threads that verify checksums."""
        self._store = store
        self._slots = slots
        self._geometry = geometry
        self._hashing = hashing
        self._gate = asyncio.Semaphore(concurrency)
        self._background: set[asyncio.Task[None]] = set()

    async def load(
        self, parts: Sequence[ShardPart], deliverer: Deliverer, deadline_s: float
    ) -> LoadOutcome:
        """Fetch, verify and deliver all parts, or as many leading ones as `deadline_s` allows."""
        transfer = _Transfer(deliverer)
        end_s = asyncio.get_running_loop().time() + deadline_s
        tasks = [asyncio.create_task(self._part(transfer, part, end_s)) for part in parts]
        self._background.update(tasks)
        for task in tasks:
            task.add_done_callback(self._forget)
        arrived_count = 0
        faults: dict[int, LoadFault] = {}
        try:
            async with asyncio.timeout_at(end_s):
                for task in tasks:
                    await asyncio.shield(task)
                    arrived_count += 1
        except _Faulted as failed:
            faults[arrived_count] = failed.fault
        except TimeoutError:
            faults[arrived_count] = LoadFault.DEADLINE
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            # Not this load but a part of it was cancelled, by `close`: somebody still waits.
            faults[arrived_count] = LoadFault.GIVEN_UP
        finally:
            # From here on no new copy starts; those under way end within milliseconds.
            transfer.wanted = False
            for index in range(arrived_count, len(tasks)):
                fault = _fault_so_far(tasks[index])
                if fault is not None:
                    faults.setdefault(index, fault)
                tasks[index].cancel()
            await _ended(transfer.copies)
        return LoadOutcome(arrived_count, transfer.received_bytes, faults)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: faults of given-up parts are of no interest

    async def _part(self, transfer: _Transfer, part: ShardPart, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        async with self._gate:
            slot = await self._slots.lend_for_load(max(0.0, end_s - loop.time()))
            if slot is None:
                raise _Faulted(LoadFault.NO_SLOT)
            try:
                data = await self._fetch(transfer, part, slot, end_s)
                await self._deliver(transfer, part, data)
            finally:
                self._slots.give_back(slot)

    async def _fetch(
        self, transfer: _Transfer, part: ShardPart, slot: LentSlot, end_s: float
    ) -> memoryview:
        """GET header and blocks into the slot, verify, return the part's bytes."""
        geometry, identity = self._geometry, part.identity
        block_count = len(identity.block_hashes)
        start, length = geometry.group_range(0, block_count, part.first_block, len(part.block_ids))
        head_bytes, memory = geometry.header_bytes, slot.memory
        key = shard_key(
            identity.namespace, identity.chunk_hash, identity.writer_index, identity.writer_count
        )
        total_bytes = geometry.shard_bytes(block_count)
        try:
            if start - head_bytes > SKIP_AT_BYTES:
                await self._get(transfer, key, 0, memory[:head_bytes], total_bytes, end_s)
                data = memory[head_bytes : head_bytes + length]
                await self._get(transfer, key, start, data, total_bytes, end_s)
            else:
                whole = memory[: start + length]
                await self._get(transfer, key, 0, whole, total_bytes, end_s)
                data = memory[start : start + length]
            await asyncio.get_running_loop().run_in_executor(
                self._hashing, self._verify, memory[:head_bytes], data, part
            )
        except S3KVError as error:
            raise _Faulted(fault_of(error)) from error
        return data

    def _verify(self, head: memoryview, data: memoryview, part: ShardPart) -> None:
        header = verify_header(head, self._geometry, part.identity)
        verify_blocks(header, self._geometry, 0, part.first_block, data)

    async def _get(
        self,
        transfer: _Transfer,
        key: str,
        start: int,
        buffer: memoryview,
        total_bytes: int,
        end_s: float,
    ) -> None:
        timeout_s = max(0.001, end_s - asyncio.get_running_loop().time())
        got = await self._store.get_into(key, start, buffer, timeout_s=timeout_s)
        if isinstance(got, Missing):
            raise _Faulted(LoadFault.MISSING)
        transfer.received_bytes += got.received_bytes
        if got.total_bytes != total_bytes or got.received_bytes != len(buffer):
            raise Corrupt(f"{key}: {got.total_bytes} bytes, expected {total_bytes}")

    async def _deliver(self, transfer: _Transfer, part: ShardPart, data: memoryview) -> None:
        loop = asyncio.get_running_loop()
        copied: asyncio.Future[bool] = loop.create_future()

        def on_done(written: bool) -> None:
            loop.call_soon_threadsafe(_settle, copied, written)

        transfer.deliverer.deliver(part.block_ids, data, lambda: transfer.wanted, on_done)
        transfer.copies.add(copied)  # not earlier: a copy that was refused never ends
        copied.add_done_callback(transfer.copies.discard)
        # Shielded: the slot may go back only after the copy has really ended.
        cancelled = False
        while not copied.done():
            try:
                await asyncio.shield(copied)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if not copied.result():
            raise _Faulted(LoadFault.COPY_FAILED if transfer.wanted else LoadFault.GIVEN_UP)

    async def close(self) -> None:
        """Cancel what still runs and wait until every slot is back."""
        tasks = set(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(copies: set[asyncio.Future[bool]]) -> None:
    """Wait for copies under way, however often the waiter is cancelled: they write into blocks."""
    cancelled = False
    while copies:
        try:
            await asyncio.wait(set(copies))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _fault_so_far(task: asyncio.Task[None]) -> LoadFault | None:
    """Why a part has failed, if it has: known bad shards should all be reported, not one a time."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    return error.fault if isinstance(error, _Faulted) else None


def _settle(future: asyncio.Future[bool], written: bool) -> None:
    if not future.done():
        future.set_result(written)
