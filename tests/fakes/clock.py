"""A clock that moves only when the test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading

from s3kv.runtime.clock import Clock

COMPUTES = "s3kv-index"
TURNS = 300
"""Turns of the event loop after each step: longer than any chain of calls on a MemoryStore."""


class FakeClock(Clock):
    """Both clocks in step; sleepers wake, in order, while `advance` passes their time."""

    def __init__(self, unix_s: float = 1_800_000_000.0, monotonic_s: float = 1_000.0) -> None:
        self._offset_s = unix_s - monotonic_s
        self._monotonic_s = monotonic_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def unix_s(self) -> float:
        return self._offset_s + self._monotonic_s

    def monotonic_s(self) -> float:
        return self._monotonic_s

    async def sleep(self, duration_s: float) -> None:
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wake_s = self._monotonic_s + duration_s
        heapq.heappush(self._sleepers, (wake_s, next(self._order), future))
        await future

    def jump(self, duration_s: float) -> None:
        """The time passes at once, as for a suspended machine: nobody wakes in between."""
        self._monotonic_s += duration_s

    async def settle(self) -> None:
        """Let every task go on until it sleeps (or waits for something that does)."""
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            # Computations are done on threads of their own, in real time.
            working = [each for each in threading.enumerate() if each.name.startswith(COMPUTES)]
            if not working:
                return
            for each in working:
                each.join()

    async def advance(self, duration_s: float) -> None:
        """Let the time pass, waking every sleeper at its moment."""
        await self.settle()
        end_s = self._monotonic_s + duration_s
        while self._sleepers and self._sleepers[0][0] <= end_s:
            wake_s, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self.jump(max(0.0, wake_s - self._monotonic_s))
            future.set_result(None)
            await self.settle()
        self.jump(end_s - self._monotonic_s)
        await self.settle()
