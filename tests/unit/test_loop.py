"""The loop thread: work goes in from any thread, and closing ends everything in bounds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from s3kv.errors import Closed
from s3kv.runtime.loop import THREAD_PREFIX, LoopThread

WAIT_S = 10.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close(WAIT_S)


async def thread_name() -> str:
    return threading.current_thread().name


def test_work_runs_on_one_named_thread_that_dies_with_the_process(loop: LoopThread) -> None:
    names = {loop.submit(thread_name()).result(WAIT_S) for _ in range(3)}
    assert names == {f"{THREAD_PREFIX}test"}
    (thread,) = [t for t in threading.enumerate() if t.name in names]
    assert thread.daemon
    assert loop.alive


def test_an_exception_reaches_whoever_asked_and_the_loop_goes_on(loop: LoopThread) -> None:
    async def fails() -> None:
        raise ValueError("injected")

    with pytest.raises(ValueError, match="injected"):
        loop.submit(fails()).result(WAIT_S)
    assert loop.submit(thread_name()).result(WAIT_S)


def test_calls_run_in_their_order(loop: LoopThread) -> None:
    seen: list[int] = []
    for index in range(100):
        loop.call(seen.append, index)
    loop.submit(asyncio.sleep(0)).result(WAIT_S)
    assert seen == list(range(100))


def test_work_of_many_threads_all_runs(loop: LoopThread) -> None:
    seen: list[int] = []

    def hand_over(number: int) -> None:
        for _ in range(50):
            loop.call(seen.append, number)

    threads = [threading.Thread(target=hand_over, args=(n,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    loop.submit(asyncio.sleep(0)).result(WAIT_S)
    assert len(seen) == 200


def test_cancelling_the_future_cancels_the_work(loop: LoopThread) -> None:
    started, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = loop.submit(waits())
    assert started.wait(WAIT_S)
    future.cancel()
    assert ended.wait(WAIT_S)


def test_close_cancels_what_runs_lets_it_clean_up_and_joins() -> None:
    loop, cleaned, started = LoopThread("test"), threading.Event(), threading.Event()

    async def waits() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    future = loop.submit(waits())
    assert started.wait(WAIT_S)
    loop.close(WAIT_S)
    assert cleaned.is_set()
    assert future.cancelled()
    assert not loop.alive
    loop.close(WAIT_S)


def test_after_close_work_is_refused_and_calls_are_dropped() -> None:
    loop = LoopThread("test")
    seen: list[int] = []
    loop.close(WAIT_S)
    with pytest.raises(Closed):
        loop.submit(thread_name())
    loop.call(seen.append, 1)
    assert seen == []


def test_close_does_not_wait_for_ever_for_a_task_that_will_not_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    loop, release, started = LoopThread("test"), threading.Event(), threading.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue

    loop.submit(stubborn())
    assert started.wait(WAIT_S)
    with caplog.at_level(logging.WARNING, logger="s3kv"):
        loop.close(0.05)
    assert "still running" in caplog.text
    release.set()
    loop._thread.join(WAIT_S)
    assert not loop.alive
