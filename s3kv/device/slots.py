"""The staging pool: one allocation cut into slots, each as large as one shard.

The rule: every slot is at any moment either free or lent to exactly one owner, and its way back is
`give_back`. Saves never take the last slot of a pool, so that a load always finds one in the end.
The pool does not know what lies in a slot and never waits on anybody's behalf but `lend`'s.

Slots start at multiples of `SLOT_ALIGNMENT`: a shard's header is a multiple of 4096 bytes, so the
blocks behind it start on a memory page too, which is what page-locking and sharing work in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import torch

from s3kv.errors import Closed

logger = logging.getLogger(__name__)

SLOT_ALIGNMENT: Final = 4096


class Purpose(Enum):
    """What a slot is lent for; decides who is served first and who may take the last one."""

    LOAD = "load"
    SAVE = "save"


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One lending of one slot; the next lending of the same memory is another `Slot`.

    memory: writable memoryview, uint8[slot_bytes]; tensor: the same bytes, torch.uint8[slot_bytes]
    on the CPU, page-locked where CUDA exists. The contents at lending time are arbitrary. Both may
    be used until the slot is given back; nothing enforces that, so drop them then.
    """

    index: int
    purpose: Purpose
    memory: memoryview
    tensor: torch.Tensor


@dataclass(slots=True, eq=False)
class _Waiter:
    purpose: Purpose
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Future[None]
    granted: Slot | None = field(default=None)


class SlotPool:
    """A fixed number of slots. Every method may be called from any thread.

    The lock is between the loop thread, which lends, and the copy and transfer threads, which give
    back; it is held for a few list operations, never while waiting.
    """

    def __init__(self, slot_bytes: int, slot_count: int) -> None:
        """Allocate slot_count slots of slot_bytes each, page-locked where CUDA exists."""
        if slot_bytes < 1 or slot_count < 1:
            raise ValueError(f"a pool needs slots: {slot_count} of {slot_bytes} bytes")
        self._slot_bytes = slot_bytes
        self._slot_count = slot_count
        self._save_limit = max(1, slot_count - 1)
        stride_bytes = -(-slot_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self._raw = _aligned_bytes(stride_bytes * slot_count)
        self._registered = _page_lock(self._raw)
        self._pieces = [
            self._raw[i * stride_bytes : i * stride_bytes + slot_bytes] for i in range(slot_count)
        ]
        self._lock = threading.Lock()
        self._free = deque(range(slot_count))
        self._lent: dict[int, Slot] = {}
        self._saves_lent = 0
        self._waiting: dict[Purpose, deque[_Waiter]] = {p: deque() for p in Purpose}
        self._closed = False

    @property
    def slot_bytes(self) -> int:
        """Size of each slot in bytes."""
        return self._slot_bytes

    @property
    def slot_count(self) -> int:
        """How many slots there are in all."""
        return self._slot_count

    @property
    def free_count(self) -> int:
        """How many slots nobody has."""
        return len(self._free)

    @property
    def lent_count(self) -> int:
        """How many slots somebody has, or has been granted and not yet picked up."""
        return len(self._lent)

    def try_lend(self, purpose: Purpose) -> Slot | None:
        """A slot if one may be had at once. Raises `Closed` after `close`."""
        with self._lock:
            self._refuse_if_closed()
            return self._take(purpose)

    async def lend(self, purpose: Purpose, timeout_s: float) -> Slot | None:
        """A slot, or None after timeout_s seconds; served in order of arrival, loads before saves.

        However the wait ends (in time, too late, cancelled), no slot is lost. Raises `Closed` when
        the pool is closed before or during the wait.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(purpose, loop, loop.create_future())
        with self._lock:
            self._refuse_if_closed()
            self._waiting[purpose].append(waiter)
            self._serve()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter.woken
        except BaseException:
            self._leave(waiter)
            raise
        with self._lock:
            if waiter.granted is not None:
                return waiter.granted
            self._refuse_if_closed()
            self._waiting[purpose].remove(waiter)
            return None

    def give_back(self, slot: Slot) -> None:
        """Return a slot; whoever waits gets it. Allowed after `close`.

        Raises AssertionError for a slot of another pool and for one already given back, also under
        `python -O`: two owners of one slot would store wrong bytes under a right name.
        """
        with self._lock:
            self._return(slot)
            self._serve()

    def close(self) -> None:
        """Lend nothing more, and tell everybody who waits. Idempotent.

        Memory that is still lent stays valid until its views are dropped; it is no longer
        page-locked then, so close the copier first.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for queue in self._waiting.values():
                for waiter in queue:
                    _wake(waiter)
                queue.clear()
            lent_count = len(self._lent)
        if lent_count:
            logger.warning("s3kv: slot pool closed with %d slots still lent", lent_count)
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self._raw.data_ptr())

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Closed("slot pool is closed")

    def _take(self, purpose: Purpose) -> Slot | None:
        is_save = purpose is Purpose.SAVE
        if not self._free or (is_save and self._saves_lent >= self._save_limit):
            return None
        index = self._free.popleft()
        piece = self._pieces[index]
        slot = Slot(index, purpose, memoryview(piece.numpy()), piece)
        self._lent[index] = slot
        self._saves_lent += is_save
        return slot

    def _return(self, slot: Slot) -> None:
        if self._lent.get(slot.index) is not slot:
            raise AssertionError(f"slot {slot.index} was given back twice or to a foreign pool")
        del self._lent[slot.index]
        self._saves_lent -= slot.purpose is Purpose.SAVE
        self._free.append(slot.index)

    def _serve(self) -> None:
        """Hand free slots to waiters. Afterwards nobody waits for what could be had."""
        if self._closed:
            return
        for purpose, queue in self._waiting.items():
            while queue and (slot := self._take(purpose)) is not None:
                waiter = queue.popleft()
                waiter.granted = slot
                if not _wake(waiter):
                    waiter.granted = None
                    self._return(slot)

    def _leave(self, waiter: _Waiter) -> None:
        """Undo a wait that ends in an exception, whether or not it was granted meanwhile."""
        with self._lock:
            if waiter.granted is not None:
                self._return(waiter.granted)
                self._serve()
            elif waiter in self._waiting[waiter.purpose]:
                self._waiting[waiter.purpose].remove(waiter)


def _wake(waiter: _Waiter) -> bool:
    """Whether the waiter's loop still lives to hear it."""
    try:
        waiter.loop.call_soon_threadsafe(_resolve, waiter.woken)
    except RuntimeError:
        return False
    return True


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _aligned_bytes(size_bytes: int) -> torch.Tensor:
    """uint8[size_bytes] on the CPU that starts at a multiple of SLOT_ALIGNMENT.

    Outside inference mode, whoever calls: a tensor born inside it could not be written by the copy
    thread, which is not in it.
    """
    with torch.inference_mode(mode=False):
        raw = torch.empty(size_bytes + SLOT_ALIGNMENT, dtype=torch.uint8, device="cpu")
        start = -raw.data_ptr() % SLOT_ALIGNMENT
        return raw[start : start + size_bytes]


def _page_lock(raw: torch.Tensor) -> bool:
    """Page-lock the memory for the device; whether it is.

    Registered rather than allocated with pin_memory, whose allocator rounds up to the next power
    of two. Where the system refuses (a memlock limit), copies are slower and just as right.
    """
    if not torch.cuda.is_available():
        return False
    error = torch.cuda.cudart().cudaHostRegister(raw.data_ptr(), raw.numel(), 0)
    if error.value != 0:
        logger.warning("s3kv: %d staging bytes are not page-locked: %s", raw.numel(), error)
        # CUDA keeps the error for the next launch to find: let it be one of ours, not the engine's.
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda")
        return False
    return True
