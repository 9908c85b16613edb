"""What every `ObjectStore` must do: one class, run against every store and every decorator.

A suite subclasses `StoreContract` and provides the async fixture `store`. Keys may be anything
below the prefix, which must be empty when a test begins. A store that splits bodies must split
12 MiB, so that the parts are tested too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from s3kv.bucket.base import (
    CREATED,
    EXISTS,
    MISSING,
    Created,
    ObjectInfo,
    ObjectStore,
    Received,
)
from s3kv.errors import Closed, Corrupt

LIMIT_S = 20.0
BIG_BYTES = 12 << 20


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


async def listed(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    pages = store.list(prefix, timeout_s=LIMIT_S)
    return [found async for page in pages for found in page]


async def put_many(store: ObjectStore, keys: Sequence[str]) -> None:
    room = asyncio.Semaphore(16)

    async def put(key: str) -> None:
        async with room:
            await store.put(key, key.encode(), timeout_s=LIMIT_S)

    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(put(key))


class StoreContract:
    """The promises of `ObjectStore`."""

    listed_count = 120
    """How many objects the listing tests make: more than fit on one page of the store."""
    racer_count = 8

    async def test_an_object_that_was_never_written_is_missing(self, store: ObjectStore) -> None:
        buffer = bytearray(4)
        assert await store.stat("a/none", timeout_s=LIMIT_S) is MISSING
        assert await store.get("a/none", max_bytes=10, timeout_s=LIMIT_S) is MISSING
        assert await store.get_into("a/none", 0, memoryview(buffer), timeout_s=LIMIT_S) is MISSING
        assert buffer == bytes(4)

    @pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1 << 20])
    async def test_what_is_put_is_read_back(self, store: ObjectStore, size: int) -> None:
        body = noise(size, size)
        etag = await store.put("dir/x", memoryview(body), timeout_s=LIMIT_S)
        found = await store.stat("dir/x", timeout_s=LIMIT_S)
        assert isinstance(found, ObjectInfo)
        assert (found.key, found.size, found.etag) == ("dir/x", size, etag)
        assert '"' not in etag
        assert await store.get("dir/x", max_bytes=size, timeout_s=LIMIT_S) == body
        buffer = bytearray(size)
        received = await store.get_into("dir/x", 0, memoryview(buffer), timeout_s=LIMIT_S)
        assert isinstance(received, Received)
        assert (received.received_bytes, received.total_bytes) == (size, size)
        assert buffer == body

    async def test_a_body_in_parts_is_read_back(self, store: ObjectStore) -> None:
        body = noise(1, BIG_BYTES)
        await store.put("big", memoryview(body), timeout_s=LIMIT_S)
        buffer = bytearray(BIG_BYTES)
        received = await store.get_into("big", 0, memoryview(buffer), timeout_s=LIMIT_S)
        assert isinstance(received, Received)
        assert received.total_bytes == BIG_BYTES
        assert buffer == body

    async def test_a_later_put_replaces_an_earlier_one(self, store: ObjectStore) -> None:
        first = await store.put("x", b"one", timeout_s=LIMIT_S)
        second = await store.put("x", b"three", timeout_s=LIMIT_S)
        assert first != second
        assert await store.get("x", max_bytes=10, timeout_s=LIMIT_S) == b"three"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 4, b"0123"),
            (3, 4, b"3456"),
            (7, 3, b"789"),
            (7, 20, b"789"),
            (9, 1, b"9"),
            (10, 5, b""),
            (100, 5, b""),
            (4, 0, b""),
        ],
    )
    async def test_a_range_gives_the_bytes_that_exist_and_the_whole_size(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        await store.put("ten", b"0123456789", timeout_s=LIMIT_S)
        buffer = bytearray(b"." * length)
        received = await store.get_into("ten", start, memoryview(buffer), timeout_s=LIMIT_S)
        assert isinstance(received, Received)
        assert (received.received_bytes, received.total_bytes) == (len(expected), 10)
        assert buffer == expected.ljust(length, b".")

    async def test_a_range_fills_the_middle_of_a_larger_buffer_and_nothing_else(
        self, store: ObjectStore
    ) -> None:
        body = noise(2, 300_000)
        await store.put("x", body, timeout_s=LIMIT_S)
        buffer = bytearray(b"." * 200_000)
        target = memoryview(buffer)[50_000:150_000]
        await store.get_into("x", 70_000, target, timeout_s=LIMIT_S)
        assert buffer == b"." * 50_000 + body[70_000:170_000] + b"." * 50_000

    async def test_an_empty_object_is_told_from_a_missing_one(self, store: ObjectStore) -> None:
        await store.put("empty", b"", timeout_s=LIMIT_S)
        buffer = bytearray(8)
        received = await store.get_into("empty", 0, memoryview(buffer), timeout_s=LIMIT_S)
        assert isinstance(received, Received)
        assert (received.received_bytes, received.total_bytes) == (0, 0)
        assert await store.get("empty", max_bytes=0, timeout_s=LIMIT_S) == b""

    async def test_an_object_larger_than_expected_is_refused(self, store: ObjectStore) -> None:
        await store.put("x", b"four", timeout_s=LIMIT_S)
        with pytest.raises(Corrupt):
            await store.get("x", max_bytes=3, timeout_s=LIMIT_S)
        assert await store.get("x", max_bytes=4, timeout_s=LIMIT_S) == b"four"

    async def test_a_name_is_created_once(self, store: ObjectStore) -> None:
        assert await store.create("tick", b"mine", timeout_s=LIMIT_S) is CREATED
        assert await store.create("tick", b"theirs", timeout_s=LIMIT_S) is EXISTS
        assert await store.get("tick", max_bytes=10, timeout_s=LIMIT_S) == b"mine"

    async def test_exactly_one_of_many_racing_creators_wins(self, store: ObjectStore) -> None:
        bodies = [f"writer {index}".encode() for index in range(self.racer_count)]
        outcomes = await asyncio.gather(
            *(store.create("slot", body, timeout_s=LIMIT_S) for body in bodies)
        )
        winners = [body for body, won in zip(bodies, outcomes, strict=True) if won == Created()]
        assert len(winners) == 1
        assert await store.get("slot", max_bytes=100, timeout_s=LIMIT_S) == winners[0]

    async def test_a_listing_finds_every_object_once(self, store: ObjectStore) -> None:
        keys = [f"many/{index:04d}" for index in range(self.listed_count)]
        await put_many(store, [*keys, "manyfold", "other/x"])
        found = await listed(store, "many/")
        assert sorted(info.key for info in found) == keys
        assert {info.size for info in found} == {len(keys[0])}
        pages = [page async for page in store.list("many/", timeout_s=LIMIT_S)]
        assert len(pages) > 1, "the test needs more objects than fit on a page"

    async def test_a_listing_may_start_inside_a_segment_and_may_be_empty(
        self, store: ObjectStore
    ) -> None:
        await put_many(store, ["idx/tick/01", "idx/tick/02", "idx/run/01"])
        assert {info.key for info in await listed(store, "idx/tick/0")} == {
            "idx/tick/01",
            "idx/tick/02",
        }
        assert len(await listed(store, "")) == 3
        assert await listed(store, "nothing/") == []

    async def test_listing_and_head_tell_the_same(self, store: ObjectStore) -> None:
        await store.put("a/x", b"abc", timeout_s=LIMIT_S)
        (info,) = await listed(store, "a/")
        head = await store.stat("a/x", timeout_s=LIMIT_S)
        assert isinstance(head, ObjectInfo)
        assert (info.key, info.size, info.etag) == (head.key, head.size, head.etag)
        assert abs(info.modified_s - head.modified_s) < 1
        assert 0 <= info.age_s < 60
        assert 0 <= head.age_s < 60

    async def test_prefixes_are_those_one_level_below(self, store: ObjectStore) -> None:
        await put_many(store, ["ns1/a/b", "ns1/c", "ns2/a", "top"])
        assert sorted(await store.list_prefixes("", timeout_s=LIMIT_S)) == ["ns1/", "ns2/"]
        assert list(await store.list_prefixes("ns1/", timeout_s=LIMIT_S)) == ["ns1/a/"]
        assert list(await store.list_prefixes("ns2/", timeout_s=LIMIT_S)) == []

    @pytest.mark.parametrize("key", ["a b/c+d", "ü/%41&x=1", "q?x#y", "quote'\"<>"])
    async def test_special_characters_in_keys_survive(self, store: ObjectStore, key: str) -> None:
        await store.put(key, b"x" * 70_000, timeout_s=LIMIT_S)
        buffer = bytearray(70_000)
        received = await store.get_into(key, 0, memoryview(buffer), timeout_s=LIMIT_S)
        assert isinstance(received, Received)
        assert received.received_bytes == 70_000
        assert [info.key for info in await listed(store, "")] == [key]
        await store.delete([key, "other"], timeout_s=LIMIT_S)
        assert await store.stat(key, timeout_s=LIMIT_S) is MISSING

    async def test_delete_removes_what_is_named_and_forgives_what_is_not_there(
        self, store: ObjectStore
    ) -> None:
        await put_many(store, ["a", "b", "c"])
        await store.delete(["a", "never"], timeout_s=LIMIT_S)
        await store.delete(["b"], timeout_s=LIMIT_S)
        await store.delete(["b"], timeout_s=LIMIT_S)
        await store.delete([], timeout_s=LIMIT_S)
        assert [info.key for info in await listed(store, "")] == ["c"]

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a/.."])
    async def test_a_key_that_could_leave_the_prefix_is_refused(
        self, store: ObjectStore, key: str
    ) -> None:
        buffer = memoryview(bytearray(4))
        calls = (
            store.stat(key, timeout_s=LIMIT_S),
            store.get(key, max_bytes=1, timeout_s=LIMIT_S),
            store.get_into(key, 0, buffer, timeout_s=LIMIT_S),
            store.put(key, b"x", timeout_s=LIMIT_S),
            store.create(key, b"x", timeout_s=LIMIT_S),
            store.delete(["fine", key], timeout_s=LIMIT_S),
        )
        for call in calls:
            with pytest.raises(ValueError, match="key"):
                await call

    async def test_a_cancelled_call_leaves_the_store_usable(self, store: ObjectStore) -> None:
        body = noise(3, 200_000)
        await store.put("x", body, timeout_s=LIMIT_S)
        buffer = bytearray(len(body))
        for wait_turns in range(12):
            task = asyncio.ensure_future(
                store.get_into("x", 0, memoryview(buffer), timeout_s=LIMIT_S)
            )
            for _ in range(wait_turns):
                await asyncio.sleep(0)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(outcome, asyncio.CancelledError | Received)
            seen = bytes(buffer)
            await store.stat("x", timeout_s=LIMIT_S)
            assert bytes(buffer) == seen, "a cancelled GET wrote into the buffer"
        await store.get_into("x", 0, memoryview(buffer), timeout_s=LIMIT_S)
        assert buffer == body

    async def test_a_closed_store_refuses_work_and_may_be_closed_again(
        self, store: ObjectStore
    ) -> None:
        await store.put("x", b"x", timeout_s=LIMIT_S)
        await store.close()
        await store.close()
        for call in (
            store.stat("x", timeout_s=LIMIT_S),
            store.get_into("x", 0, memoryview(bytearray(1)), timeout_s=LIMIT_S),
            store.put("x", bytes(100_000), timeout_s=LIMIT_S),
            store.delete(["x"], timeout_s=LIMIT_S),
        ):
            with pytest.raises(Closed):
                await call
