"""The one event loop thread of a process: every conversation with the bucket runs here.

Engine threads hand work over with `submit` and `call` and never wait for it. `close` cancels what
is left and joins the thread within a bound.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

from s3kv.errors import Closed

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREAD_PREFIX = "s3kv-"
"""Names of all threads that may talk to the bucket start with this (checked in `bucket`)."""


class LoopThread:
    """An asyncio loop on a daemon thread. Methods may be called from any other thread."""

    def __init__(self, name: str = "loop") -> None:
        """Start the thread `s3kv-{name}` and return once its loop runs."""
        self._loop = asyncio.new_event_loop()
        self._closed = threading.Event()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name=f"{THREAD_PREFIX}{name}", daemon=True
        )
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Run a coroutine on the loop. Raises `Closed` after `close`."""
        if self._closed.is_set():
            work.close()
            raise Closed("event loop thread is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Run a plain function on the loop soon; dropped silently after `close`."""
        if not self._closed.is_set():
            self._loop.call_soon_threadsafe(function, *args)

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def close(self, timeout_s: float) -> None:
        """Cancel every task, let their clean-up run, stop and join. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        ended = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        try:
            ended.result(timeout=timeout_s)
        except TimeoutError:
            logger.warning("s3kv: tasks still running %.1f s after close", timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=timeout_s)

    async def _cancel_all(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
