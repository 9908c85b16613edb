from __future__ import annotations

import asyncio

import pytest

from s3kv.bucket.base import CREATED, EXISTS, Created, Exists, ObjectStore
from s3kv.bucket.faults import Fail, Faulty, Hold, LoseReply
from s3kv.bucket.memory import MemoryStore
from s3kv.bucket.retry import Retrying, RetryPolicy
from s3kv.errors import Closed, Corrupt, Denied, Mismatch, S3KVError, Throttled, Transient
from tests.bucket.contract import put_many

POLICY = RetryPolicy(attempt_count=3, pause_s=0.5, throttled_pause_s=8.0, longest_pause_s=60.0)


class Pauses:
    """A sleep that returns at once and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    async def __call__(self, pause_s: float) -> None:
        self.asked_s.append(pause_s)


@pytest.fixture
def faulty() -> Faulty:
    return Faulty(MemoryStore(page_keys=2))


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def store(faulty: Faulty, pauses: Pauses) -> ObjectStore:
    return Retrying(faulty, POLICY, sleep=pauses)


@pytest.mark.parametrize("error", [Transient("reset"), Throttled("slow down")])
async def test_what_may_pass_is_repeated_until_it_passes(
    store: ObjectStore, faulty: Faulty, error: Transient
) -> None:
    faulty.inject(Fail(error), times=2)
    await store.put("x", b"x", timeout_s=100)
    assert faulty.calls == [("put", "x")] * 3


async def test_attempts_are_bounded_and_the_last_error_is_told(
    store: ObjectStore, faulty: Faulty
) -> None:
    faulty.inject(Fail(Transient("reset")), times=2)
    faulty.inject(Fail(Throttled("slow down")), times=None)
    with pytest.raises(Throttled):
        await store.stat("x", timeout_s=1000)
    assert len(faulty.calls) == POLICY.attempt_count


@pytest.mark.parametrize("error", [Denied("no"), Corrupt("bad"), Mismatch("other"), Closed("end")])
async def test_what_cannot_pass_is_asked_once(
    store: ObjectStore, faulty: Faulty, pauses: Pauses, error: S3KVError
) -> None:
    faulty.inject(Fail(error), times=None)
    with pytest.raises(type(error)):
        await store.get("x", max_bytes=1, timeout_s=100)
    assert len(faulty.calls) == 1
    assert pauses.asked_s == []


async def test_missing_and_taken_names_are_answers(store: ObjectStore, faulty: Faulty) -> None:
    await store.get("none", max_bytes=1, timeout_s=10)
    await store.create("x", b"", timeout_s=10)
    await store.create("x", b"", timeout_s=10)
    assert len(faulty.calls) == 3


async def test_pauses_are_random_grow_and_are_longer_when_throttled(
    faulty: Faulty, pauses: Pauses
) -> None:
    policy = RetryPolicy(attempt_count=6, pause_s=0.5, throttled_pause_s=8.0, longest_pause_s=60.0)
    store = Retrying(faulty, policy, sleep=pauses)
    drawn: dict[str, list[list[float]]] = {"Transient": [], "Throttled": []}
    for error in (Transient("reset"), Throttled("slow down")):
        for _ in range(40):
            pauses.asked_s = []
            faulty.heal()
            faulty.inject(Fail(error), times=None)
            with pytest.raises(type(error)):
                await store.stat("x", timeout_s=10_000)
            drawn[type(error).__name__].append(pauses.asked_s)
    for name, first_s in (("Transient", 0.5), ("Throttled", 8.0)):
        for attempt, column in enumerate(zip(*drawn[name], strict=True)):
            bound_s = min(first_s * 2**attempt, 60.0)
            assert max(column) <= bound_s
            assert max(column) > bound_s / 2, "full jitter reaches up to its bound"
            assert len(set(column)) > 30, "pauses are random"


async def test_no_attempt_begins_after_the_callers_time(faulty: Faulty) -> None:
    store = Retrying(faulty, RetryPolicy(attempt_count=1000, pause_s=0.01))
    faulty.inject(Fail(Transient("reset")), times=None)
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Transient):
        await store.stat("x", timeout_s=0.2)
    assert asyncio.get_running_loop().time() - started_s < 5
    assert 1 < len(faulty.calls) < 1000


async def test_each_attempt_gets_only_the_time_that_is_left() -> None:
    class Watching(MemoryStore):
        given_s: list[float] = []  # noqa: RUF012 - one test, one instance

        async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
            self.given_s.append(timeout_s)
            await asyncio.sleep(0.01)
            raise Transient("reset")

    store = Retrying(Watching(), RetryPolicy(attempt_count=3, pause_s=0.001))
    with pytest.raises(Transient):
        await store.create("x", b"", timeout_s=9.0)
    assert Watching.given_s == sorted(Watching.given_s, reverse=True)
    assert 8.9 < Watching.given_s[0] <= 9.0
    assert Watching.given_s[-1] < 8.99


async def test_a_create_whose_reply_was_lost_is_found_taken(
    store: ObjectStore, faulty: Faulty
) -> None:
    faulty.inject(LoseReply(Transient("reset")), "create")
    assert await store.create("tick", b"mine", timeout_s=10) is EXISTS
    assert await store.get("tick", max_bytes=10, timeout_s=10) == b"mine"
    assert await store.create("other", b"mine", timeout_s=10) is CREATED


async def test_a_failed_page_is_asked_for_again_and_no_other(
    store: ObjectStore, faulty: Faulty
) -> None:
    await put_many(faulty, ["a", "b", "c", "d", "e"])
    faulty.calls.clear()
    faulty.inject(Fail(Transient("reset")), "list", skip=1, times=2)
    pages = store.list("", timeout_s=10)
    assert [info.key async for page in pages for info in page] == ["a", "b", "c", "d", "e"]
    # Three pages and two failures.
    assert len(faulty.calls) == 5


async def test_cancellation_is_not_repeated(store: ObjectStore, faulty: Faulty) -> None:
    hold = Hold()
    faulty.inject(hold, "put", times=None)
    task = asyncio.ensure_future(store.put("x", b"", timeout_s=10))
    await hold.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(faulty.calls) == 1
