"""No exception leaves a hook: it costs a miss or an unsaved chunk, is counted, and is logged."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

LOG_EVERY_S = 60.0


class Guard:
    """Runs the body of hooks. Owned by the engine's thread."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.caught: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}

    def run(
        self,
        hook: str,
        fallback: Callable[[], U],
        body: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | U:
        """body(*args); after an exception, `fallback()`, which must be too simple to fail."""
        try:
            return body(*args, **kwargs)
        except Exception:
            self.caught[hook] += 1
            now_s = time.monotonic()
            if now_s - self._logged_s.get(hook, -LOG_EVERY_S) >= LOG_EVERY_S:
                self._logged_s[hook] = now_s
                logger.exception("s3kv: %s failed; the engine goes on without it", hook)
            return fallback()


def nothing() -> None:
    """The fallback of hooks whose answer nobody needs."""
    return
