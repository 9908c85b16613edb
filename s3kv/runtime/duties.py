"""Recurring work on one task: each duty fails, pauses and recovers by itself.

Rule upheld here: nothing that a duty raises ends the task, except `Closed` (the process is ending)
and `Mismatch` (this may not go on), which `run` hands to its caller. No duty waits for another
duty's recovery.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from s3kv.errors import Closed, Denied, Mismatch, S3KVError
from s3kv.runtime.clock import Clock

logger = logging.getLogger(__name__)

NAP_MIN_S, NAP_MAX_S = 0.005, 3_600.0
"""Something that is always due must not turn the loop thread into a spinning one."""
COMPLAIN_AT = 3
"""Failures in a row before a line in the log: one is weather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses after failures double from min_s to max_s; denied_s after a refusal."""

    min_s: float = 0.5
    max_s: float = 30.0
    denied_s: float = 60.0


@dataclass(slots=True, eq=False)
class Duty:
    """due_s(now_s): when the action is wanted next, monotonic seconds, inf for never."""

    name: str
    action: Callable[[], Awaitable[None]]
    due_s: Callable[[float], float]
    not_before_s: float = float("-inf")
    failure_count: int = 0
    is_denied: bool = False

    def next_s(self, now_s: float) -> float:
        """When it will be done: not during its pause."""
        return max(self.due_s(now_s), self.not_before_s)


class Duties:
    """Does duties in their order, one at a time. Owned by the task that runs it."""

    def __init__(
        self,
        duties: Sequence[Duty],
        clock: Clock,
        rng: random.Random,
        backoff: Backoff,
        denied_level: int = logging.ERROR,
    ) -> None:
        """rng: jitter of the pauses; denied_level: of the line about a refusal in the log."""
        self.failures = 0
        self.denials = 0
        self._duties = duties
        self._clock = clock
        self._rng = rng
        self._backoff = backoff
        self._denied_level = denied_level
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something may be due earlier than was planned. Loop thread only."""
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled. Raises `Closed` and `Mismatch` when a duty does."""
        while True:
            for duty in self._duties:
                now_s = self._clock.monotonic_s()
                if duty.next_s(now_s) <= now_s:
                    await self._attempt(duty)
            now_s = self._clock.monotonic_s()
            await self._nap(min(duty.next_s(now_s) for duty in self._duties) - now_s)

    async def _attempt(self, duty: Duty) -> None:
        try:
            await duty.action()
        except (Closed, Mismatch):
            raise
        except Denied as error:
            self.denials += 1
            if not duty.is_denied:
                logger.log(self._denied_level, "s3kv: %s is denied: %s", duty.name, error)
            duty.is_denied = True
            self._pause(duty, self._backoff.denied_s)
        except S3KVError as error:
            self._failed(duty)
            if duty.failure_count == COMPLAIN_AT:
                logger.warning("s3kv: %s fails again and again: %s", duty.name, error)
        except Exception:  # task root: a fault of ours costs hits, not the cache
            self._failed(duty)
            if duty.failure_count == 1:
                logger.exception("s3kv: %s failed", duty.name)
        else:
            if duty.failure_count >= COMPLAIN_AT or duty.is_denied:
                logger.info("s3kv: %s works again", duty.name)
            duty.failure_count, duty.is_denied = 0, False

    def _failed(self, duty: Duty) -> None:
        self.failures += 1
        duty.failure_count += 1
        longest_s = self._backoff.min_s * 2.0 ** min(duty.failure_count, 16)
        self._pause(duty, min(longest_s, self._backoff.max_s))

    def _pause(self, duty: Duty, longest_s: float) -> None:
        # Half fixed, half random: a fleet that failed together does not come back together.
        duty.not_before_s = self._clock.monotonic_s() + longest_s * self._rng.uniform(0.5, 1.0)

    async def _nap(self, duration_s: float) -> None:
        nap_s = min(max(duration_s, NAP_MIN_S), NAP_MAX_S)
        asleep = asyncio.ensure_future(self._clock.sleep(nap_s))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((asleep, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asleep.cancel()
            woken.cancel()
        self._woken.clear()
