from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from s3kv.bucket.base import (
    CREATED,
    ConditionalDelete,
    Created,
    Exists,
    ObjectInfo,
    ObjectStore,
)
from s3kv.bucket.capabilities import (
    PROBE_PREFIX,
    Capabilities,
    DeleteListed,
    find_conditional_delete,
    probe_capabilities,
)
from s3kv.bucket.faults import Fail, Faulty, Flip, LoseReply, Vanish
from s3kv.bucket.memory import MemoryStore
from s3kv.bucket.retry import Retrying, RetryPolicy
from s3kv.errors import Denied, Transient
from tests.bucket.contract import listed
from tests.bucket.stores import plain_store
from tests.servers import READER

CONDITIONAL_DELETES = {"memory": "batch", "moto": "batch", "seaweed": "batch"}
EVERYTHING = Capabilities(
    readable=True,
    writable=True,
    conditional_put=True,
    ranged_get=True,
    listing=True,
    deletable=True,
    conditional_delete="batch",
)


@pytest.fixture(params=["memory", "moto", "seaweed"])
async def store(request: pytest.FixtureRequest, fresh_uri: str) -> AsyncIterator[ObjectStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    endpoint_url = request.getfixturevalue(f"{request.param}_endpoint")
    async with plain_store(endpoint_url, fresh_uri) as opened:
        yield opened


async def test_a_whole_store_can_do_everything_and_is_left_as_it_was(store: ObjectStore) -> None:
    found = await probe_capabilities(store)
    # How it deletes on condition is its own affair: see the next test.
    assert replace(found, conditional_delete=EVERYTHING.conditional_delete) == EVERYTHING
    assert found.describe() == (
        "store: read=yes write=yes create-if-absent=yes ranges=yes list=yes delete=yes "
        f"conditional-delete={found.conditional_delete}"
    )
    assert await listed(store, "") == []


async def test_how_a_store_deletes_on_condition_is_found_out(
    store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    """As seen with these servers; a store that ignores ETags is tried in `careless`."""
    name = request.node.callspec.params["store"]
    found = await probe_capabilities(store)
    assert found.conditional_delete == CONDITIONAL_DELETES[name]


async def test_the_probe_touches_nothing_outside_its_own_folder(faulty: Faulty) -> None:
    await probe_capabilities(faulty)
    assert all(key.startswith(PROBE_PREFIX) for _, key in faulty.calls)
    assert ("conditional_delete", PROBE_PREFIX) in faulty.calls
    await probe_capabilities(faulty)
    assert len({key for operation, key in faulty.calls if operation == "create"}) == 2


async def test_a_reader_without_write_permission_gets_a_read_only_store(
    seaweed_endpoint: str, fresh_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER.secret_key)
    async with plain_store(seaweed_endpoint, fresh_uri) as store:
        found = await probe_capabilities(store)
    assert found.readable
    assert not found.writable
    assert found.certain
    assert "AccessDenied" in found.describe()


async def test_refused_reads_are_denied(faulty: Faulty) -> None:
    faulty.inject(Fail(Denied("AccessDenied")), "get")
    with pytest.raises(Denied):
        await probe_capabilities(faulty)


@pytest.mark.parametrize("server", ["moto", "seaweed"])
async def test_a_missing_bucket_is_denied_and_stays_missing(
    request: pytest.FixtureRequest, server: str
) -> None:
    endpoint_url = request.getfixturevalue(f"{server}_endpoint")
    async with plain_store(endpoint_url, "s3://nobody-made-this/x") as store:
        for size in (10, 100_000, 12 << 20):
            with pytest.raises(Denied, match="nobody-made-this"):
                await store.put("x", bytes(size), timeout_s=10)
        with pytest.raises(Denied, match="nobody-made-this"):
            await probe_capabilities(store)


async def test_a_store_that_refuses_the_condition_is_writable(
    faulty: Faulty, memory: MemoryStore
) -> None:
    faulty.inject(Fail(Denied("NotImplemented")), "create", times=None)
    found = await probe_capabilities(faulty)
    assert (found.writable, found.conditional_put, found.deletable) == (True, False, True)
    assert "no index" in found.describe()
    assert memory.objects == {}


async def test_a_store_that_ignores_the_condition_is_found_out() -> None:
    class Careless(MemoryStore):
        async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
            self.write(key, body)
            return CREATED

    found = await probe_capabilities(Careless())
    assert (found.writable, found.conditional_put) == (True, False)
    assert "ignored" in found.describe()


async def test_wrong_ranges_and_listings_are_found_out(faulty: Faulty) -> None:
    faulty.inject(Flip(0), "get_into")
    faulty.inject(Vanish(), "list")
    found = await probe_capabilities(faulty)
    assert (found.ranged_get, found.listing, found.deletable) == (False, False, True)
    assert found.certain


async def test_a_store_that_is_down_is_not_called_read_only(faulty: Faulty) -> None:
    faulty.inject(Fail(Transient("connection refused")), times=None)
    found = await probe_capabilities(faulty)
    assert not found.certain
    assert "not reachable" in found.describe()


async def test_a_failure_in_the_middle_makes_the_answer_uncertain(faulty: Faulty) -> None:
    faulty.inject(Fail(Transient("reset")), "list")
    found = await probe_capabilities(faulty)
    assert not found.certain
    assert (found.writable, found.listing, found.deletable) == (True, False, True)


async def test_a_lost_reply_does_not_look_like_a_careless_store(faulty: Faulty) -> None:
    faulty.inject(LoseReply(Transient("reset")), "create")
    found = await probe_capabilities(Retrying(faulty, RetryPolicy(pause_s=0)))
    assert found == replace(EVERYTHING, conditional_delete="batch")


async def test_a_store_that_deletes_nothing_is_not_asked_for_conditions(
    faulty: Faulty, memory: MemoryStore
) -> None:
    faulty.inject(Fail(Denied("AccessDenied")), "delete", times=None)
    found = await probe_capabilities(faulty)
    assert (found.deletable, found.conditional_delete) == (False, "none")
    assert "conditional_delete" not in [operation for operation, _ in faulty.calls]
    assert len(found.problems) == 1


class Ways:
    """Ways to delete from a memory store: one right, others wrong in every way we know."""

    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory
        self.asked: list[str] = []

    async def right(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        self.asked.append("right")
        return await self.memory.delete_listed(found, timeout_s=1)

    async def ignores_etags(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        await self.memory.delete([each.key for each in found], timeout_s=1)
        return []

    async def deletes_and_calls_it_kept(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        await self.memory.delete([each.key for each in found], timeout_s=1)
        return [each.key for each in found]

    async def keeps_and_calls_it_deleted(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        return []

    async def refuses_every_etag(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        return [each.key for each in found]

    async def refuses_the_request(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        raise Denied("NotImplemented")

    async def fails(self, found: Sequence[ObjectInfo]) -> Sequence[str]:
        raise Transient("reset")


WRONG_WAYS = [
    "ignores_etags",
    "deletes_and_calls_it_kept",
    "keeps_and_calls_it_deleted",
    "refuses_every_etag",
    "refuses_the_request",
]


@pytest.mark.parametrize("name", WRONG_WAYS)
async def test_a_way_that_does_not_keep_its_word_is_not_taken(
    memory: MemoryStore, name: str
) -> None:
    ways = Ways(memory)
    wrong: DeleteListed = getattr(ways, name)
    assert await find_conditional_delete(memory, {"batch": wrong}, timeout_s=1) == "none"
    tried: dict[ConditionalDelete, DeleteListed] = {"batch": wrong, "single": ways.right}
    assert await find_conditional_delete(memory, tried, timeout_s=1) == "single"
    assert memory.objects == {}


async def test_the_first_way_that_keeps_its_word_is_taken(memory: MemoryStore) -> None:
    ways = Ways(memory)
    tried: dict[ConditionalDelete, DeleteListed] = {"batch": ways.right, "single": ways.fails}
    assert await find_conditional_delete(memory, tried, timeout_s=1) == "batch"
    assert memory.objects == {}


async def test_a_trial_that_fails_proves_nothing_and_cleans_up(memory: MemoryStore) -> None:
    ways = Ways(memory)
    with pytest.raises(Transient):
        await find_conditional_delete(
            memory, {"batch": ways.fails, "single": ways.right}, timeout_s=1
        )
    assert ways.asked == []
    assert memory.objects == {}


async def test_without_permission_to_delete_nothing_is_found_out(
    faulty: Faulty, memory: MemoryStore
) -> None:
    faulty.inject(Fail(Denied("AccessDenied")), "delete", times=None)
    ways = Ways(memory)
    with pytest.raises(Denied):
        await find_conditional_delete(faulty, {"batch": ways.refuses_the_request}, timeout_s=1)
