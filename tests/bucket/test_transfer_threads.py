from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from s3kv.bucket.transfer_threads import Flight, TransferThreads, current_flight
from s3kv.errors import Closed


@pytest.fixture
async def lone() -> AsyncIterator[TransferThreads]:
    threads = TransferThreads(1, "test-body")
    yield threads
    await threads.close()


class Gate:
    """Work that waits in its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, flight: Flight[str]) -> str:
        self.entered.set()
        self.opened.wait(10)
        return "through"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - set by a thread that knows no loop
        await asyncio.sleep(0.002)


async def test_work_runs_on_named_daemon_threads(lone: TransferThreads) -> None:
    def work(flight: Flight[tuple[str, bool, bool]]) -> tuple[str, bool, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon, current_flight() is flight

    assert await lone.load(work, 5) == ("test-body-0", True, True)
    assert current_flight() is None


async def test_an_error_of_the_work_reaches_the_caller_and_the_thread_lives_on(
    lone: TransferThreads,
) -> None:
    def fail(flight: Flight[str]) -> str:
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError):
            await lone.load(fail, 5)


async def test_waiting_loads_go_before_waiting_saves(lone: TransferThreads) -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[[Flight[None]], None]:
        return lambda flight: order.append(name)

    gate = Gate()
    first = asyncio.ensure_future(lone.save(gate, 10))
    await until(gate.entered.is_set)
    waiting = [
        asyncio.ensure_future(lone.save(noting("save 1"), 10)),
        asyncio.ensure_future(lone.save(noting("save 2"), 10)),
        asyncio.ensure_future(lone.load(noting("load 1"), 10)),
        asyncio.ensure_future(lone.load(noting("load 2"), 10)),
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(first, *waiting)
    assert order == ["load 1", "load 2", "save 1", "save 2"]


async def test_saves_leave_a_thread_for_loads() -> None:
    threads = TransferThreads(4, "test-body")
    gates = [Gate() for _ in range(6)]
    saves = [asyncio.ensure_future(threads.save(gate, 10)) for gate in gates]
    await until(lambda: sum(gate.entered.is_set() for gate in gates) == 3)
    assert await threads.load(lambda flight: "loaded", 10) == "loaded"
    assert sum(gate.entered.is_set() for gate in gates) == 3
    for gate in gates:
        gate.opened.set()
    assert await asyncio.gather(*saves) == ["through"] * 6
    await threads.close()


async def test_work_whose_time_is_up_before_it_starts_never_runs(lone: TransferThreads) -> None:
    gate = Gate()
    blocking = asyncio.ensure_future(lone.load(gate, 10))
    await until(gate.entered.is_set)
    ran: list[str] = []
    with pytest.raises(TimeoutError):
        await lone.load(lambda flight: ran.append("late"), 0.05)
    gate.opened.set()
    await blocking
    assert await lone.load(lambda flight: "next", 10) == "next"
    assert ran == []


@pytest.mark.parametrize("touch", [True, False])
async def test_a_caller_waits_for_a_thread_exactly_if_it_holds_the_buffer(
    lone: TransferThreads, *, touch: bool
) -> None:
    gate = Gate()

    def work(flight: Flight[str]) -> str:
        if touch:
            flight.touch()
        return gate(flight)

    task = asyncio.ensure_future(lone.load(work, 30))
    await until(gate.entered.is_set)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.done() is not touch
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_abandoned_flight_cannot_touch_its_buffer_any_more(lone: TransferThreads) -> None:
    gate = Gate()
    touched: list[str] = []

    def work(flight: Flight[str]) -> str:
        gate(flight)
        flight.touch()
        touched.append("after the end")
        return "never"

    task = asyncio.ensure_future(lone.load(work, 30))
    await until(gate.entered.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.opened.set()
    await lone.load(lambda flight: None, 10)
    assert touched == []


async def test_abandoning_wakes_a_thread_that_waits_for_its_socket(lone: TransferThreads) -> None:
    ours, theirs = socket.socketpair()
    reading = threading.Event()

    def work(flight: Flight[bytes]) -> bytes:
        flight.use_socket(ours)
        flight.touch()
        reading.set()
        return ours.recv(1)

    with ours, theirs:
        task = asyncio.ensure_future(lone.load(work, 30))
        await until(reading.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_socket_that_works_for_somebody_else_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        flight: Flight[None] = Flight(lambda _: None)
        flight.use_socket(ours)
        flight.drop_socket()
        assert flight.abandon()
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"


async def test_close_ends_waiting_work_and_threads() -> None:
    threads = TransferThreads(1, "test-close")
    gate = Gate()
    running = asyncio.ensure_future(threads.load(gate, 30))
    await until(gate.entered.is_set)
    waiting = asyncio.ensure_future(threads.load(gate, 30))
    await asyncio.sleep(0)
    gate.opened.set()
    await threads.close()
    await threads.close()
    outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
    assert isinstance(outcomes[1], Closed)
    assert not [t for t in threading.enumerate() if t.name.startswith("test-close")]
    with pytest.raises(Closed):
        await threads.load(gate, 1)
