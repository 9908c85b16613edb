"""Threads that move bodies, and the promise that a caller's buffer is free when it gets it back.

A `Flight` is one transfer: a blocking function run by one thread and awaited by one task. When the
task is cancelled or its time is up, the flight is abandoned: its socket is shut down, which wakes
the thread out of any read or write at once, and the task waits until the thread has let go of the
buffer. A flight that has not touched its buffer yet is let go immediately and can never touch it.

Loads are taken before saves, and saves leave some threads free for loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from s3kv.errors import Closed

T = TypeVar("T")
V = TypeVar("V")

CLOSE_TIMEOUT_S = 5.0


class Abandoned(Exception):
    """Inside a transfer thread: nobody waits for this flight any more."""


class Flight(Generic[T]):
    """One transfer. The lock is between its thread and the event loop that may abandon it."""

    def __init__(self, work: Callable[[Flight[T]], T]) -> None:
        """work: blocking, gets this flight; must call `touch` before it uses the buffer."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._abandoned = False
        self._touched = False
        self._socket: socket.socket | None = None
        self.landed: asyncio.Future[T] = self._loop.create_future()
        self.landed.add_done_callback(_retrieve)

    def use_socket(self, sock: socket.socket) -> None:
        """From the thread: this socket now works for this flight. Raises `Abandoned`."""
        with self._lock:
            self._raise_if_abandoned()
            self._socket = sock

    def drop_socket(self) -> None:
        """From any transfer thread: the socket works for somebody else from now on."""
        with self._lock:
            self._socket = None

    def touch(self) -> None:
        """From the thread: the buffer is in use until the work returns. Raises `Abandoned`."""
        with self._lock:
            self._raise_if_abandoned()
            self._touched = True

    def _raise_if_abandoned(self) -> None:
        if self._abandoned:
            raise Abandoned

    def abandon(self) -> bool:
        """From the loop: give up. True if the buffer is free already, else wait for `landed`."""
        with self._lock:
            self._abandoned = True
            if self._socket is not None:
                # Not `SSLSocket.shutdown`, which takes the TLS layer away from under the reader.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            return not self._touched

    def run(self) -> None:
        """From the thread: do the work and tell the loop."""
        if self._abandoned:
            self._tell(self._fail, Abandoned())
            return
        try:
            result = self._work(self)
        except BaseException as error:  # noqa: BLE001 - root of a thread's work, told to the task
            self.drop_socket()
            self._tell(self._fail, Abandoned() if self._abandoned else error)
        else:
            self.drop_socket()
            self._tell(self._succeed, result)

    def _tell(self, how: Callable[[V], None], what: V) -> None:
        # A closed loop has no task left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(how, what)

    def _succeed(self, result: T) -> None:
        if not self.landed.done():
            self.landed.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.landed.done():
            self.landed.set_exception(error)


def _retrieve(landed: asyncio.Future[T]) -> None:
    # An abandoned flight fails unseen; asyncio would complain about that at its collection.
    if not landed.cancelled():
        landed.exception()


class _Runnable(Protocol):
    def run(self) -> None: ...

    def abandon(self) -> bool: ...


_current = threading.local()


def current_flight() -> Flight[object] | None:
    """The flight that the calling transfer thread works on."""
    flight: Flight[object] | None = getattr(_current, "flight", None)
    return flight


class TransferThreads:
    """A bounded pool of daemon threads. The condition is between the loop and these threads."""

    def __init__(self, thread_count: int, name_prefix: str) -> None:
        """Threads are named `{name_prefix}-{index}` and start with the first flight."""
        self._thread_count = thread_count
        self._save_limit = max(1, thread_count - max(1, thread_count // 4))
        self._name_prefix = name_prefix
        self._loads: deque[_Runnable] = deque()
        self._saves: deque[_Runnable] = deque()
        self._save_count = 0
        self._aloft: set[_Runnable] = set()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._condition = threading.Condition()

    async def load(self, work: Callable[[Flight[T]], T], timeout_s: float) -> T:
        """Run `work` on a thread. Raises what it raises, `TimeoutError`, `Closed`."""
        return await self._fly(Flight(work), self._loads, timeout_s)

    async def save(self, work: Callable[[Flight[T]], T], timeout_s: float) -> T:
        """As `load`, after all waiting loads."""
        return await self._fly(Flight(work), self._saves, timeout_s)

    async def _fly(self, flight: Flight[T], queue: deque[_Runnable], timeout_s: float) -> T:
        with self._condition:
            if self._closed:
                raise Closed("transfer threads are closed")
            self._start()
            queue.append(flight)
            self._condition.notify()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(flight.landed)
        except (TimeoutError, asyncio.CancelledError):
            if not flight.abandon():
                await _wait_out(flight.landed)
            raise
        except Abandoned:
            raise Closed("transfer threads were closed") from None

    def _start(self) -> None:
        if self._threads:
            return
        for index in range(self._thread_count):
            name = f"{self._name_prefix}-{index}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while True:
            with self._condition:
                taken = self._take()
                while taken is None:
                    if self._closed:
                        return
                    self._condition.wait()
                    taken = self._take()
                flight, is_save = taken
                self._aloft.add(flight)
            _current.flight = flight
            flight.run()
            _current.flight = None
            with self._condition:
                self._aloft.discard(flight)
                if is_save:
                    self._save_count -= 1
                    self._condition.notify()
            del flight, taken

    def _take(self) -> tuple[_Runnable, bool] | None:
        if self._loads:
            return self._loads.popleft(), False
        if self._saves and self._save_count < self._save_limit:
            self._save_count += 1
            return self._saves.popleft(), True
        return None

    async def close(self) -> None:
        """Abandon what is left and end the threads. Idempotent.

        A thread that hangs in a name lookup holds no buffer and is left to die with the process.
        """
        with self._condition:
            self._closed = True
            for flight in (*self._loads, *self._saves, *self._aloft):
                flight.abandon()
            self._condition.notify_all()
        deadline_s = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_S
        while any(thread.is_alive() for thread in self._threads):
            if asyncio.get_running_loop().time() > deadline_s:
                return
            await asyncio.sleep(0.002)


async def _wait_out(landed: asyncio.Future[T]) -> None:
    """Wait until a thread has let go of a buffer, however often the waiting task is cancelled.

    Swallowed cancellations are those after the one that the caller is about to raise again.
    """
    while not landed.done():
        try:
            await asyncio.wait((landed,))
        except asyncio.CancelledError:
            continue
