from __future__ import annotations

import pytest

from s3kv.bucket.base import ObjectInfo, ObjectStore
from s3kv.bucket.memory import MemoryStore
from s3kv.errors import Transient
from tests.bucket.contract import StoreContract, listed, put_many
from tests.bucket.contract_upkeep import BeginUpload, UpkeepContract, VersionedContract, versions


class TestMemoryStore(StoreContract, UpkeepContract):
    listed_count = 1_200

    @pytest.fixture
    async def store(self, memory: MemoryStore) -> ObjectStore:
        return memory

    @pytest.fixture
    def begin_upload(self, memory: MemoryStore) -> BeginUpload:
        async def begin_upload(key: str) -> str:
            return memory.begin_upload(key).upload_id

        return begin_upload


class TestMemoryStoreWithVersions(VersionedContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return MemoryStore(versioned=True)


async def test_age_and_modification_time_come_from_the_injected_clock() -> None:
    now_s = 1_000.0
    store = MemoryStore(unix_s=lambda: now_s)
    await store.put("x", b"", timeout_s=1)
    now_s = 1_060.5
    found = await store.stat("x", timeout_s=1)
    assert isinstance(found, ObjectInfo)
    assert (found.modified_s, found.age_s) == (1_000.0, 60.5)
    upload = store.begin_upload("y")
    now_s = 1_061.0
    (listed_upload,) = await store.list_uploads("", timeout_s=1)
    assert (listed_upload.upload_id, listed_upload.age_s) == (upload.upload_id, 0.5)
    assert [one.age_s for one in await versions(store, "")] == [61.0]


async def test_a_copy_onto_itself_renews_its_age_and_nothing_else() -> None:
    now_s = 1_000.0
    store = MemoryStore(unix_s=lambda: now_s)
    await store.put("x", b"body", timeout_s=1)
    (old,) = await listed(store, "")
    now_s = 1_060.5
    assert await store.copy(old, "x", timeout_s=1)
    (new,) = await listed(store, "")
    assert (new.modified_s, new.age_s, new.etag) == (1_060.5, 0.0, old.etag)


async def test_a_listing_in_small_pages_survives_deletions_between_them() -> None:
    store = MemoryStore(page_keys=2)
    await put_many(store, ["a", "b", "c", "d", "e"])
    pages = store.list("", timeout_s=1)
    assert [info.key for info in await anext(pages)] == ["a", "b"]
    await store.delete(["b", "c"], timeout_s=1)
    assert [info.key async for page in pages for info in page] == ["d", "e"]


async def test_a_call_without_time_left_fails_without_effect() -> None:
    store = MemoryStore()
    with pytest.raises(Transient):
        await store.put("x", b"x", timeout_s=0)
    assert await listed(store, "") == []
