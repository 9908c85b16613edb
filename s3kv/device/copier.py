"""The copy thread: moves blocks between the paged cache and slots, one copy at a time.

The rule: a job reports exactly once, and only after its bytes have arrived or can no longer
arrive. Until then slot and blocks belong to the job. Loads go before saves; within a kind, jobs run
in the order they came. A job starts only when its fence has passed, so a save that waits for a
forward pass does not hold up a load, and nothing is written after its owner stopped wanting it.

The copier does not bound its queue: every job holds a slot, and slots are bounded.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import torch

from s3kv.device.paged import PagedGroup
from s3kv.errors import Closed

logger = logging.getLogger(__name__)

FENCE_POLL_S: Final = 0.001
"""How often a pending fence is looked at. CUDA has no way to wait for an event or a new job,
whichever is first; a millisecond is nothing beside a forward pass."""


class Outcome(Enum):
    """How a delivery ended. FAILED: the blocks may hold anything, but nothing writes any more."""

    WRITTEN = "written"
    SKIPPED = "skipped"
    FAILED = "failed"


class Fence(Protocol):
    """A point in the engine's stream of work (a `torch.cuda.Event` satisfies this)."""

    def query(self) -> bool:
        """Whether all work before the point is done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    move: Callable[[Sequence[int], torch.Tensor], None]
    block_ids: tuple[int, ...]
    flat: torch.Tensor
    after: Fence | None
    still_wanted: Callable[[], bool]
    report: Callable[[Outcome, BaseException | None], None]


class Copier:
    """One daemon thread "s3kv-copy" over one group. Methods may be called from any other thread.

    The condition is between the threads that submit and the copy thread.
    """

    def __init__(self, group: PagedGroup) -> None:
        """Start the thread. The group belongs to it from now on."""
        self._group = group
        is_cuda = group.device.type == "cuda"
        self._stream = torch.cuda.Stream(group.device) if is_cuda else None
        self._changed = threading.Condition()
        self._loads: deque[_Job] = deque()
        self._saves: deque[_Job] = deque()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="s3kv-copy", daemon=True)
        self._thread.start()

    @property
    def pending_count(self) -> int:
        """Jobs that have not reported yet."""
        with self._changed:
            return self._pending()

    def fence(self) -> Fence | None:
        """Mark the work queued so far on the calling thread's current stream; None on the CPU.

        Called by the engine's thread: after the forward pass for saves, before it for loads.
        """
        if self._group.device.type != "cuda":
            return None
        event: Fence = torch.cuda.current_stream(self._group.device).record_event()
        return event

    def stage(
        self,
        block_ids: Sequence[int],
        slot_view: torch.Tensor | memoryview,
        after: Fence | None,
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        """Copy blocks from the cache into a slot once the fence has passed.

        slot_view: writable uint8[len(block_ids) * block_bytes], block-major, the job's until
        on_done(None) (the bytes are in the slot) or on_done(error) (they are not). on_done runs on
        the copy thread (or in `close`) and must not block. Raises `Closed` after `close`.
        """
        job = _Job(
            self._group.gather_into,
            tuple(block_ids),
            _as_tensor(slot_view),
            after,
            still_wanted=lambda: True,
            report=lambda _, error: on_done(error),
        )
        self._submit(self._saves, job)

    def deliver(
        self,
        block_ids: Sequence[int],
        slot_view: torch.Tensor | memoryview,
        after: Fence | None,
        still_wanted: Callable[[], bool],
        on_done: Callable[[Outcome], None],
    ) -> None:
        """Copy a slot into blocks of the cache once the fence has passed, if still wanted then.

        still_wanted is asked at most once, on the copy thread, right before the copy. True is a
        promise to both sides: the blocks are being written until on_done, so whoever would expire
        the load must decide under the same lock as the answer. on_done: as in `stage`.
        """
        job = _Job(
            self._group.scatter_from,
            tuple(block_ids),
            _as_tensor(slot_view),
            after,
            still_wanted=still_wanted,
            report=lambda outcome, _: on_done(outcome),
        )
        self._submit(self._loads, job)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every job has reported. False if some have not after timeout_s."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending() == 0, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Take no more jobs, give queued ones timeout_s to finish, drop the rest. Idempotent.

        Returns how many were dropped; they report `Closed` or SKIPPED from here. A copy that is
        under way is never dropped: it reports from its thread, if need be after this returned.
        """
        if threading.current_thread() is self._thread:
            raise AssertionError("the copy thread cannot wait for its own end")
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pending() == 0, timeout_s)
            dropped = [*self._loads, *self._saves]
            self._loads.clear()
            self._saves.clear()
            self._changed.notify_all()
        for job in dropped:
            _report(job, Outcome.SKIPPED, Closed("copier closed before the copy began"))
        if dropped:
            logger.warning("s3kv: copier closed, %d copies dropped", len(dropped))
        self._thread.join(FENCE_POLL_S * 100)
        if self._thread.is_alive():
            logger.warning("s3kv: a copy is still under way %.1f s after close", timeout_s)
        return len(dropped)

    def _pending(self) -> int:
        return len(self._loads) + len(self._saves) + self._busy

    def _submit(self, queue: deque[_Job], job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise Closed("copier is closed")
            queue.append(job)
            self._changed.notify_all()

    def _run(self) -> None:
        with self._on_side_stream():
            while self._step():
                pass

    @contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        """On CUDA: everything this thread queues goes to a stream of its own."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._group.device), torch.cuda.stream(self._stream):
            yield

    def _step(self) -> bool:
        """Do one job. False when closed and nothing is left.

        A frame of its own, so that an idle thread holds no slot by a forgotten name.
        """
        job = self._next()
        if job is None:
            return False
        outcome, error = self._perform(job)
        _report(job, outcome, error)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _next(self) -> _Job | None:
        with self._changed:
            while True:
                for queue in (self._loads, self._saves):
                    if queue and _passed(queue[0].after):
                        self._busy = True
                        return queue.popleft()
                queued = bool(self._loads or self._saves)
                if self._closed and not queued:
                    return None
                self._changed.wait(FENCE_POLL_S if queued else None)

    def _perform(self, job: _Job) -> tuple[Outcome, BaseException | None]:
        try:
            if not job.still_wanted():
                return Outcome.SKIPPED, None
            job.move(job.block_ids, job.flat)
            self._settle()
        except Exception as error:
            logger.exception("s3kv: copying %d blocks failed", len(job.block_ids))
            # Half of it may be queued: what was begun must end before anybody reuses the memory.
            with suppress(RuntimeError):
                self._settle()
            return Outcome.FAILED, error
        return Outcome.WRITTEN, None

    def _settle(self) -> None:
        """Wait until the bytes have arrived, asleep: spinning would take the engine's core."""
        if self._stream is not None:
            event = torch.cuda.Event(blocking=True)
            event.record(self._stream)
            event.synchronize()


def _passed(fence: Fence | None) -> bool:
    try:
        return fence is None or fence.query()
    except RuntimeError:  # the device is broken: the copy will say so, and report
        return True


def _report(job: _Job, outcome: Outcome, error: BaseException | None) -> None:
    try:
        job.report(outcome, error)
    except Exception:
        logger.exception("s3kv: whoever waited for a copy failed to hear of it")


def _as_tensor(slot_view: torch.Tensor | memoryview) -> torch.Tensor:
    if isinstance(slot_view, memoryview):
        return torch.frombuffer(slot_view, dtype=torch.uint8)
    return slot_view
