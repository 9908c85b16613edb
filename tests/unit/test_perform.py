"""Long computations of the index run beside the loop, on a thread that ends with them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from s3kv.bucket.memory import MemoryStore
from s3kv.core.requests import Steps, work
from s3kv.errors import Corrupt
from s3kv.runtime.perform import perform
from tests.fakes.clock import FakeClock


def names() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("s3kv-index")]


async def test_a_computation_does_not_stop_the_loop_and_leaves_no_thread() -> None:
    began, may_end = threading.Event(), threading.Event()

    def compute() -> str:
        began.set()
        assert may_end.wait(10.0)
        return threading.current_thread().name

    def steps() -> Steps[str]:
        return (yield from work(compute))

    running = asyncio.create_task(perform(steps(), MemoryStore(), FakeClock(), 1.0))
    while not began.is_set():  # noqa: ASYNC110  the loop goes on meanwhile
        await asyncio.sleep(0)
    assert names() == ["s3kv-index_0"]
    may_end.set()

    assert await running == "s3kv-index_0"
    for thread in threading.enumerate():
        if thread.name.startswith("s3kv-index"):
            thread.join(10.0)
    assert names() == []


async def test_what_a_computation_raises_belongs_to_the_protocol() -> None:
    def fail() -> None:
        raise Corrupt("bad bytes")

    def steps() -> Steps[str]:
        try:
            yield from work(fail)
        except Corrupt as error:
            return str(error)
        return ""

    assert await perform(steps(), MemoryStore(), FakeClock(), 1.0) == "bad bytes"


async def test_a_cancelled_protocol_is_closed_although_its_computation_goes_on() -> None:
    began, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        began.set()
        assert may_end.wait(10.0)

    def steps() -> Steps[None]:
        try:
            yield from work(compute)
        finally:
            closed.set()

    running = asyncio.create_task(perform(steps(), MemoryStore(), FakeClock(), 1.0))
    while not began.is_set():  # noqa: ASYNC110  the loop goes on meanwhile
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert closed.is_set()
    may_end.set()
