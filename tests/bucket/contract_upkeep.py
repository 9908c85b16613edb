"""What every `ObjectStore` must do to keep a bucket in order; used like `contract.StoreContract`.

A suite provides the async fixture `store`, and `begin_upload`, which leaves an unfinished upload of
a key behind. `VersionedContract` wants a `store` on a bucket that keeps versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from s3kv.bucket.base import (
    MISSING,
    NULL_VERSION,
    ObjectInfo,
    ObjectStore,
    ObjectVersion,
    UploadInfo,
)
from s3kv.errors import Closed, Corrupt
from tests.bucket.contract import BIG_BYTES, LIMIT_S, listed, noise, put_many

BeginUpload: TypeAlias = Callable[[str], Awaitable[str]]
"""Begins an upload of a key; returns its id."""


async def info_of(store: ObjectStore, key: str) -> ObjectInfo:
    (found,) = [found for found in await listed(store, key) if found.key == key]
    return found


async def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(found.key for found in await listed(store, prefix))


async def versions(store: ObjectStore, prefix: str) -> list[ObjectVersion]:
    pages = store.list_versions(prefix, timeout_s=LIMIT_S)
    return [found async for page in pages for found in page]


class ConditionalDeleteContract:
    """The promises of `ObjectStore.delete_listed`."""

    async def test_what_is_still_the_listed_upload_is_deleted(self, store: ObjectStore) -> None:
        await put_many(store, ["a/1", "a/2", "b"])
        found = await listed(store, "a/")
        assert list(await store.delete_listed(found, timeout_s=LIMIT_S)) == []
        assert await keys_of(store) == ["b"]
        assert list(await store.delete_listed([], timeout_s=LIMIT_S)) == []

    async def test_what_was_uploaded_since_the_listing_is_kept_and_told(
        self, store: ObjectStore
    ) -> None:
        keys = [f"a/{index:02d}" for index in range(40)]
        await put_many(store, keys)
        found = await listed(store, "a/")
        for key in ("a/07", "a/31"):
            await store.put(key, b"uploaded again", timeout_s=LIMIT_S)
        kept = await store.delete_listed(found, timeout_s=LIMIT_S)
        assert sorted(kept) == ["a/07", "a/31"]
        assert await keys_of(store) == ["a/07", "a/31"]
        assert await store.get("a/07", max_bytes=99, timeout_s=LIMIT_S) == b"uploaded again"

    async def test_one_object_alone_is_kept_or_deleted_likewise(self, store: ObjectStore) -> None:
        await store.put("x", b"one", timeout_s=LIMIT_S)
        old = await info_of(store, "x")
        await store.put("x", b"two", timeout_s=LIMIT_S)
        assert list(await store.delete_listed([old], timeout_s=LIMIT_S)) == ["x"]
        new = await info_of(store, "x")
        assert list(await store.delete_listed([new], timeout_s=LIMIT_S)) == []
        assert await store.stat("x", timeout_s=LIMIT_S) is MISSING

    async def test_what_is_gone_already_is_neither_an_error_nor_kept(
        self, store: ObjectStore
    ) -> None:
        await put_many(store, ["a", "b", "c"])
        found = await listed(store, "")
        await store.delete(["b"], timeout_s=LIMIT_S)
        assert list(await store.delete_listed(found, timeout_s=LIMIT_S)) == []
        assert list(await store.delete_listed(found[:1], timeout_s=LIMIT_S)) == []
        assert list(await store.delete_listed(found, timeout_s=LIMIT_S)) == []

    async def test_what_nobody_can_recognise_is_kept(self, store: ObjectStore) -> None:
        await put_many(store, ["a", "b"])
        found = [
            replace(one, etag="") if one.key == "a" else one for one in await listed(store, "")
        ]
        assert list(await store.delete_listed(found, timeout_s=LIMIT_S)) == ["a"]
        assert list(await store.delete_listed(found[:1], timeout_s=LIMIT_S)) == ["a"]
        assert await keys_of(store) == ["a"]

    async def test_a_body_in_parts_is_recognised(self, store: ObjectStore) -> None:
        await store.put("big", noise(1, BIG_BYTES), timeout_s=LIMIT_S)
        old = await info_of(store, "big")
        await store.put("big", noise(2, BIG_BYTES), timeout_s=LIMIT_S)
        assert list(await store.delete_listed([old], timeout_s=LIMIT_S)) == ["big"]
        new = await info_of(store, "big")
        assert list(await store.delete_listed([new], timeout_s=LIMIT_S)) == []

    async def test_how_it_deletes_on_condition_does_not_change(self, store: ObjectStore) -> None:
        ways = await asyncio.gather(
            *(store.conditional_delete(timeout_s=LIMIT_S) for _ in range(3))
        )
        assert ways[0] in ("batch", "single", "none")
        assert len(set(ways)) == 1
        assert await keys_of(store) == [], "the trial cleans up behind itself"


class UpkeepContract(ConditionalDeleteContract):
    """The promises of `ObjectStore` about objects as a whole."""

    listed_count: int
    """How many objects make more than one page of the store."""

    async def test_pages_by_token_and_pages_of_versions_tell_all_that_the_listing_tells(
        self, store: ObjectStore
    ) -> None:
        keys = [f"many/{index:04d}" for index in range(self.listed_count)]
        await put_many(store, keys)
        found: list[str] = []
        page_count, token = 0, None
        while page_count == 0 or token is not None:
            page = await store.list_page("many/", token, timeout_s=LIMIT_S)
            again = await store.list_page("many/", token, timeout_s=LIMIT_S)
            assert [one.key for one in again.objects] == [one.key for one in page.objects]
            found += [one.key for one in page.objects]
            page_count, token = page_count + 1, page.next_token
        assert page_count > 1
        assert sorted(found) == keys
        pages = [page async for page in store.list_versions("many/", timeout_s=LIMIT_S)]
        assert len(pages) > 1
        assert sorted(one.key for page in pages for one in page) == keys
        await store.delete_versions([one for page in pages for one in page], timeout_s=LIMIT_S)
        assert await versions(store, "") == []

    async def test_an_empty_listing_is_one_empty_page(self, store: ObjectStore) -> None:
        page = await store.list_page("nothing/", None, timeout_s=LIMIT_S)
        assert (list(page.objects), page.next_token) == ([], None)

    # --------------------------------------------------------------------------- copy
    @pytest.mark.parametrize("size", [0, 100_000, BIG_BYTES])
    async def test_a_copy_has_the_same_bytes(self, store: ObjectStore, size: int) -> None:
        body = noise(size, size)
        await store.put("a/x", body, timeout_s=LIMIT_S)
        assert await store.copy(await info_of(store, "a/x"), "b/y", timeout_s=LIMIT_S)
        assert await store.get("b/y", max_bytes=size, timeout_s=LIMIT_S) == body
        assert await store.get("a/x", max_bytes=size, timeout_s=LIMIT_S) == body

    @pytest.mark.parametrize("size", [100, BIG_BYTES])
    async def test_a_copy_onto_itself_keeps_the_bytes(self, store: ObjectStore, size: int) -> None:
        body = noise(size, size)
        await store.put("a/x", body, timeout_s=LIMIT_S)
        found = await info_of(store, "a/x")
        assert await store.copy(found, "a/x", timeout_s=LIMIT_S)
        renewed = await info_of(store, "a/x")
        assert renewed.modified_s >= found.modified_s
        assert await store.get("a/x", max_bytes=size, timeout_s=LIMIT_S) == body
        assert await store.copy(renewed, "a/x", timeout_s=LIMIT_S)

    async def test_what_changed_or_is_gone_is_not_copied(self, store: ObjectStore) -> None:
        await store.put("x", b"one", timeout_s=LIMIT_S)
        old = await info_of(store, "x")
        await store.put("x", b"two", timeout_s=LIMIT_S)
        assert not await store.copy(old, "y", timeout_s=LIMIT_S)
        assert not await store.copy(old, "x", timeout_s=LIMIT_S)
        assert not await store.copy(replace(old, key="never"), "y", timeout_s=LIMIT_S)
        assert not await store.copy(replace(old, etag=""), "y", timeout_s=LIMIT_S)
        assert await keys_of(store) == ["x"]
        assert await store.get("x", max_bytes=9, timeout_s=LIMIT_S) == b"two"

    async def test_more_than_one_request_can_copy_is_refused(self, store: ObjectStore) -> None:
        await store.put("x", b"one", timeout_s=LIMIT_S)
        claimed = replace(await info_of(store, "x"), size=(5 << 30) + 1)
        with pytest.raises(Corrupt):
            await store.copy(claimed, "y", timeout_s=LIMIT_S)
        assert await keys_of(store) == ["x"]

    async def test_special_characters_in_conditional_deletes_and_copies_survive(
        self, store: ObjectStore
    ) -> None:
        keys = ["a b/c+d", "ü/%41&x=1", "q?x#y", "quote'\"<>"]
        await put_many(store, keys)
        for found in await listed(store, ""):
            assert await store.copy(found, f"copy/{found.key}", timeout_s=LIMIT_S)
        found_all = await listed(store, "")
        assert sorted(found.key for found in found_all) == sorted(
            [*keys, *(f"copy/{key}" for key in keys)]
        )
        assert list(await store.delete_listed(found_all, timeout_s=LIMIT_S)) == []
        assert await keys_of(store) == []

    # ------------------------------------------------------------------------ uploads
    async def test_unfinished_uploads_are_listed_until_they_are_aborted(
        self, store: ObjectStore, begin_upload: BeginUpload
    ) -> None:
        ids = {await begin_upload(key): key for key in ("a/x", "a/x", "a/y z", "b")}
        found = await store.list_uploads("a/", timeout_s=LIMIT_S)
        assert {one.upload_id: one.key for one in found} == {
            upload_id: key for upload_id, key in ids.items() if key != "b"
        }
        assert all(one.age_s >= 0 for one in found)
        assert len(await store.list_uploads("", timeout_s=LIMIT_S)) == 4
        await store.abort_upload(found[0], timeout_s=LIMIT_S)
        left = {one.upload_id for one in await store.list_uploads("a/", timeout_s=LIMIT_S)}
        assert left == {one.upload_id for one in found[1:]}
        await store.abort_upload(found[0], timeout_s=LIMIT_S)
        assert list(await store.list_uploads("c/", timeout_s=LIMIT_S)) == []

    async def test_an_upload_is_no_object(
        self, store: ObjectStore, begin_upload: BeginUpload
    ) -> None:
        await begin_upload("a/x")
        assert await keys_of(store) == []
        assert await versions(store, "") == []

    # ----------------------------------------------------------------------- versions
    async def test_without_versioning_each_object_is_its_only_version(
        self, store: ObjectStore
    ) -> None:
        await put_many(store, ["a/1", "a/2 ü", "b"])
        await store.put("a/1", b"second", timeout_s=LIMIT_S)
        found = await versions(store, "a/")
        assert {one.key: one.size for one in found} == {"a/1": 6, "a/2 ü": len("a/2 ü".encode())}
        assert {one.version_id for one in found} == {NULL_VERSION}
        assert all(one.is_latest and not one.is_marker for one in found)
        assert all(0 <= one.age_s < 60 for one in found)
        await store.delete_versions(found, timeout_s=LIMIT_S)
        await store.delete_versions(found, timeout_s=LIMIT_S)
        await store.delete_versions([], timeout_s=LIMIT_S)
        assert await keys_of(store) == ["b"]

    # ---------------------------------------------------------------------- bad calls
    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a/.."])
    async def test_upkeep_cannot_leave_the_prefix(self, store: ObjectStore, key: str) -> None:
        fine = ObjectInfo("fine", 1, "e", 0.0, 0.0)
        calls = (
            store.delete_listed([fine, replace(fine, key=key)], timeout_s=LIMIT_S),
            store.copy(fine, key, timeout_s=LIMIT_S),
            store.copy(replace(fine, key=key), "fine", timeout_s=LIMIT_S),
            store.abort_upload(UploadInfo(key, "u", 0.0), timeout_s=LIMIT_S),
            store.delete_versions([_version(key)], timeout_s=LIMIT_S),
        )
        for call in calls:
            with pytest.raises(ValueError, match="key"):
                await call

    async def test_a_closed_store_keeps_nothing_in_order(self, store: ObjectStore) -> None:
        await store.put("x", b"x", timeout_s=LIMIT_S)
        found = await info_of(store, "x")
        await store.close()
        for call in (
            store.list_page("", None, timeout_s=LIMIT_S),
            store.conditional_delete(timeout_s=LIMIT_S),
            store.delete_listed([found], timeout_s=LIMIT_S),
            store.copy(found, "y", timeout_s=LIMIT_S),
            store.list_uploads("", timeout_s=LIMIT_S),
            store.abort_upload(UploadInfo("x", "u", 0.0), timeout_s=LIMIT_S),
            anext(store.list_versions("", timeout_s=LIMIT_S)),
            store.delete_versions([_version("x")], timeout_s=LIMIT_S),
        ):
            with pytest.raises(Closed):
                await call


class VersionedContract:
    """What holds where a bucket keeps versions."""

    async def test_every_version_and_marker_is_listed_and_can_be_deleted_for_good(
        self, store: ObjectStore
    ) -> None:
        for body in (b"1", b"22", b"333"):
            await store.put("a/x", body, timeout_s=LIMIT_S)
        await store.put("a/y", b"4444", timeout_s=LIMIT_S)
        await store.delete(["a/x"], timeout_s=LIMIT_S)
        found = await versions(store, "a/")
        assert sorted((one.key, one.size, one.is_latest, one.is_marker) for one in found) == [
            ("a/x", 0, True, True),
            ("a/x", 1, False, False),
            ("a/x", 2, False, False),
            ("a/x", 3, False, False),
            ("a/y", 4, True, False),
        ]
        assert len({one.version_id for one in found}) == 5
        await store.delete_versions([one for one in found if one.is_marker], timeout_s=LIMIT_S)
        assert await store.get("a/x", max_bytes=9, timeout_s=LIMIT_S) == b"333"
        await store.delete_versions(found, timeout_s=LIMIT_S)
        assert await versions(store, "a/") == []

    async def test_only_the_named_versions_go(self, store: ObjectStore) -> None:
        for body in (b"1", b"22"):
            await store.put("x", body, timeout_s=LIMIT_S)
        old = [one for one in await versions(store, "x") if not one.is_latest]
        await store.delete_versions(old, timeout_s=LIMIT_S)
        assert [one.size for one in await versions(store, "x")] == [2]
        assert await store.get("x", max_bytes=9, timeout_s=LIMIT_S) == b"22"

    async def test_a_conditional_delete_leaves_what_it_deleted_as_a_version(
        self, store: ObjectStore
    ) -> None:
        await store.put("x", b"1", timeout_s=LIMIT_S)
        old = await info_of(store, "x")
        await store.put("x", b"22", timeout_s=LIMIT_S)
        assert list(await store.delete_listed([old], timeout_s=LIMIT_S)) == ["x"]
        new = await info_of(store, "x")
        assert list(await store.delete_listed([new], timeout_s=LIMIT_S)) == []
        assert await keys_of(store, "x") == []
        assert _sizes(await versions(store, "x")) == [0, 1, 2]
        assert list(await store.delete_listed([new], timeout_s=LIMIT_S)) == []


def _sizes(found: Sequence[ObjectVersion]) -> list[int]:
    return sorted(one.size for one in found)


def _version(key: str) -> ObjectVersion:
    return ObjectVersion(key, NULL_VERSION, 1, 0.0, True, False)
