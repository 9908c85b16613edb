from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.base import ObjectStore
from tests.bucket.careless import careless_proxy
from tests.bucket.contract import StoreContract
from tests.bucket.contract_upkeep import (
    BeginUpload,
    ConditionalDeleteContract,
    UpkeepContract,
    VersionedContract,
)
from tests.bucket.stores import connected_store, plain_store, uploads_by, versioned_uri


class TestOnMoto(StoreContract, UpkeepContract):
    @pytest.fixture
    async def store(self, moto_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with plain_store(moto_endpoint, fresh_uri) as store:
            yield store

    @pytest.fixture
    def begin_upload(self, moto_endpoint: str, fresh_uri: str) -> BeginUpload:
        return uploads_by(moto_endpoint, fresh_uri)


class TestOnSeaweed(StoreContract, UpkeepContract):
    listed_count = 1_001
    racer_count = 4  # SeaweedFS lets the losers wait for seconds

    @pytest.fixture
    async def store(self, seaweed_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with plain_store(seaweed_endpoint, fresh_uri) as store:
            yield store

    @pytest.fixture
    def begin_upload(self, seaweed_endpoint: str, fresh_uri: str) -> BeginUpload:
        return uploads_by(seaweed_endpoint, fresh_uri)


class TestConnectedOnMoto(StoreContract, UpkeepContract):
    @pytest.fixture
    async def store(self, moto_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with connected_store(moto_endpoint, fresh_uri) as store:
            yield store

    @pytest.fixture
    def begin_upload(self, moto_endpoint: str, fresh_uri: str) -> BeginUpload:
        return uploads_by(moto_endpoint, fresh_uri)


class TestWithVersions(VersionedContract):
    @pytest.fixture(params=["moto", "seaweed"])
    async def store(self, request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
        endpoint_url = request.getfixturevalue(f"{request.param}_endpoint")
        async with plain_store(endpoint_url, versioned_uri(endpoint_url)) as store:
            yield store


class _OnACarelessStore(ConditionalDeleteContract):
    forgets_singles = False

    @pytest.fixture
    async def store(self, moto_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with (
            careless_proxy(
                moto_endpoint, forgets_batches=True, forgets_singles=self.forgets_singles
            ) as endpoint_url,
            plain_store(endpoint_url, fresh_uri) as store,
        ):
            yield store


class TestWithoutConditionalBatches(_OnACarelessStore):
    async def test_one_request_per_name_is_used(self, store: ObjectStore) -> None:
        assert await store.conditional_delete(timeout_s=10) == "single"


class TestWithoutConditionalDeletes(_OnACarelessStore):
    forgets_singles = True

    async def test_each_object_is_looked_at(self, store: ObjectStore) -> None:
        assert await store.conditional_delete(timeout_s=10) == "none"


@pytest.mark.realbucket
class TestOnARealBucket(StoreContract, UpkeepContract):
    """Only where S3KV_TEST_URI is set; AWS_ENDPOINT_URL_S3 may name the store."""

    listed_count = 1_001

    @pytest.fixture
    async def store(self, real_uri: str) -> AsyncIterator[ObjectStore]:
        async with connected_store(None, real_uri) as store:
            yield store
        async with connected_store(None, real_uri) as cleaner:
            async for page in cleaner.list("", timeout_s=60):
                await cleaner.delete([found.key for found in page], timeout_s=60)
            for upload in await cleaner.list_uploads("", timeout_s=60):
                await cleaner.abort_upload(upload, timeout_s=60)

    @pytest.fixture
    def begin_upload(self, real_uri: str) -> BeginUpload:
        return uploads_by(None, real_uri)
