"""`Faulty` is what other suites believe in, so its own behaviour is tested."""

from __future__ import annotations

import asyncio

import pytest

from s3kv.bucket.base import CREATED, MISSING, Received
from s3kv.bucket.faults import Fail, Faulty, Flip, Hold, LoseReply, Truncate, Vanish
from s3kv.bucket.memory import MemoryStore
from s3kv.errors import Denied, Throttled, Transient


async def test_a_failed_request_has_no_effect(faulty: Faulty, memory: MemoryStore) -> None:
    faulty.inject(Fail(Throttled("slow down")), "put")
    with pytest.raises(Throttled):
        await faulty.put("x", b"x", timeout_s=1)
    assert memory.objects == {}
    await faulty.put("x", b"x", timeout_s=1)


async def test_a_lost_reply_has_its_effect(faulty: Faulty, memory: MemoryStore) -> None:
    faulty.inject(LoseReply(Transient("reset")), "create", "delete", times=2)
    with pytest.raises(Transient):
        await faulty.create("x", b"mine", timeout_s=1)
    assert memory.objects == {"x": b"mine"}
    with pytest.raises(Transient):
        await faulty.delete(["x"], timeout_s=1)
    assert memory.objects == {}


async def test_rules_hit_only_what_they_name(faulty: Faulty) -> None:
    faulty.inject(Fail(Denied("no")), "put", keys="ns/data/*", skip=1, times=1)
    await faulty.put("ns/idx/a", b"", timeout_s=1)
    await faulty.put("ns/data/a", b"", timeout_s=1)
    await faulty.stat("ns/data/a", timeout_s=1)
    with pytest.raises(Denied):
        await faulty.put("ns/data/b", b"", timeout_s=1)
    await faulty.put("ns/data/b", b"", timeout_s=1)
    faulty.inject(Fail(Denied("no")), times=None)
    faulty.heal()
    await faulty.put("ns/data/b", b"", timeout_s=1)


async def test_a_delete_is_hit_by_any_of_its_keys(faulty: Faulty) -> None:
    faulty.inject(Fail(Denied("no")), "delete", keys="b")
    with pytest.raises(Denied):
        await faulty.delete(["a", "b"], timeout_s=1)


@pytest.mark.parametrize(
    ("fault", "expected"), [(Truncate(4), b"0123"), (Flip(2), b"01\xcd3456789"), (Flip(99), None)]
)
async def test_damage_hits_reads_and_writes_alike(
    faulty: Faulty, memory: MemoryStore, fault: Truncate | Flip, expected: bytes | None
) -> None:
    whole = b"0123456789"
    expected = expected or whole
    memory.write("x", whole)
    faulty.inject(fault, times=4)
    assert await faulty.get("x", max_bytes=10, timeout_s=1) == expected
    buffer = bytearray(10)
    received = await faulty.get_into("x", 0, memoryview(buffer), timeout_s=1)
    assert isinstance(received, Received)
    assert (received.received_bytes, received.total_bytes) == (len(expected), 10)
    assert buffer[: len(expected)] == expected
    await faulty.put("put", memoryview(whole), timeout_s=1)
    assert await faulty.create("created", whole, timeout_s=1) is CREATED
    assert memory.objects == {"x": whole, "put": expected, "created": expected}


async def test_vanished_objects_are_still_there_afterwards(
    faulty: Faulty, memory: MemoryStore
) -> None:
    memory.write("a/x", b"x")
    faulty.inject(Vanish(), times=None)
    assert await faulty.stat("a/x", timeout_s=1) is MISSING
    assert await faulty.get("a/x", max_bytes=1, timeout_s=1) is MISSING
    assert await faulty.get_into("a/x", 0, memoryview(bytearray(1)), timeout_s=1) is MISSING
    assert [page async for page in faulty.list("", timeout_s=1) if page] == []
    assert await faulty.list_prefixes("", timeout_s=1) == ()
    faulty.heal()
    assert await faulty.get("a/x", max_bytes=1, timeout_s=1) == b"x"


async def test_a_held_request_waits_before_its_effect(faulty: Faulty, memory: MemoryStore) -> None:
    hold = Hold()
    faulty.inject(hold, "put")
    task = asyncio.ensure_future(faulty.put("x", b"x", timeout_s=1))
    await hold.entered.wait()
    assert memory.objects == {}
    hold.released.set()
    await task
    assert memory.objects == {"x": b"x"}
    assert faulty.calls == [("put", "x")]
