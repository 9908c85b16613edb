"""The only place that reads a clock: everything else is given the time, or this.

Monotonic seconds count time spent suspended: a sleeper must not take an old view for a fresh one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

# Linux only; elsewhere the ordinary monotonic clock, which may stand still during suspend.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks; stateless, any thread. Tests replace it whole."""

    def unix_s(self) -> float:
        """Wall-clock seconds since 1970."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds that never go back and count suspend."""
        return time.clock_gettime(_BOOTTIME)

    async def sleep(self, duration_s: float) -> None:
        """Let other tasks run for so long."""
        await asyncio.sleep(duration_s)
