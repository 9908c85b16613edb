from __future__ import annotations

import threading

import pytest

from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.bucket.meter import Meter, Metered, MultipartSizes
from s3kv.bucket.retry import Retrying, RetryPolicy
from s3kv.errors import Denied, Transient
from tests.bucket.contract import listed, put_many


async def test_requests_are_counted_as_the_store_bills_them() -> None:
    store = Metered(MemoryStore(page_keys=2), multipart=MultipartSizes(100, 40))
    await store.put("a", bytes(100), timeout_s=1)
    await store.put("b", bytes(101), timeout_s=1)
    await store.create("c", bytes(7), timeout_s=1)
    await store.create("c", bytes(7), timeout_s=1)
    await store.stat("a", timeout_s=1)
    await store.get("a", max_bytes=100, timeout_s=1)
    await store.get("none", max_bytes=100, timeout_s=1)
    await store.get_into("b", 90, memoryview(bytearray(50)), timeout_s=1)
    await listed(store, "")
    await store.list_prefixes("", timeout_s=1)
    await store.delete([f"k{index}" for index in range(2_001)], timeout_s=1)
    traffic = store.meter.snapshot()
    assert traffic.requests == {
        "put": 1,
        "multipart": 5,  # create, 3 parts, complete
        "create": 2,
        "head": 1,
        "get": 3,
        "list": 3,  # two pages of the listing, one of prefixes
        "delete": 3,
    }
    assert traffic.sent_bytes == 100 + 101 + 14
    assert traffic.received_bytes == 100 + 11
    assert traffic.errors == {}


async def test_failures_are_counted_by_name_and_every_attempt_counts() -> None:
    faulty = Faulty(MemoryStore())
    meter = Meter()
    policy = RetryPolicy(attempt_count=3, pause_s=0, throttled_pause_s=0)
    store = Retrying(Metered(faulty, meter), policy)
    faulty.inject(Fail(Transient("reset")), times=2)
    await store.put("x", bytes(10), timeout_s=10)
    faulty.inject(Fail(Denied("no")))
    with pytest.raises(Denied):
        await store.stat("x", timeout_s=10)
    traffic = meter.snapshot()
    assert traffic.requests == {"put": 3, "head": 1}
    assert traffic.errors == {"Transient": 2, "Denied": 1}
    assert traffic.sent_bytes == 10


async def test_seconds_are_those_of_the_injected_clock() -> None:
    ticks = iter(range(100))
    store = Metered(MemoryStore(), Meter(monotonic_s=lambda: float(next(ticks))))
    await put_many(store, ["a"])
    await store.stat("a", timeout_s=1)
    await store.stat("a", timeout_s=1)
    assert store.meter.snapshot().seconds == {"put": 1.0, "head": 2.0}


async def test_a_snapshot_does_not_change_afterwards() -> None:
    store = Metered(MemoryStore())
    before = store.meter.snapshot()
    await store.put("a", b"abc", timeout_s=1)
    assert before.requests == {}
    assert before.sent_bytes == 0


def test_nothing_is_lost_when_threads_count_at_once() -> None:
    meter = Meter()

    def count() -> None:
        for _ in range(5_000):
            with meter.request("get"):
                meter.add_bytes(received=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    traffic = meter.snapshot()
    assert traffic.requests == {"get": 20_000}
    assert traffic.received_bytes == 20_000
