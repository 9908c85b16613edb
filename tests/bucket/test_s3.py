from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.base import ObjectStore
from tests.bucket.contract import StoreContract
from tests.bucket.stores import connected_store, plain_store


class TestOnMoto(StoreContract):
    @pytest.fixture
    async def store(self, moto_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with plain_store(moto_endpoint, fresh_uri) as store:
            yield store


class TestOnSeaweed(StoreContract):
    listed_count = 1_001
    racer_count = 4  # SeaweedFS lets the losers wait for seconds

    @pytest.fixture
    async def store(self, seaweed_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with plain_store(seaweed_endpoint, fresh_uri) as store:
            yield store


class TestConnectedOnMoto(StoreContract):
    @pytest.fixture
    async def store(self, moto_endpoint: str, fresh_uri: str) -> AsyncIterator[ObjectStore]:
        async with connected_store(moto_endpoint, fresh_uri) as store:
            yield store


@pytest.mark.realbucket
class TestOnARealBucket(StoreContract):
    """Only where S3KV_TEST_URI is set; AWS_ENDPOINT_URL_S3 may name the store."""

    listed_count = 1_001

    @pytest.fixture
    async def store(self, real_uri: str) -> AsyncIterator[ObjectStore]:
        async with connected_store(None, real_uri) as store:
            yield store
        async with connected_store(None, real_uri) as cleaner:
            async for page in cleaner.list("", timeout_s=60):
                await cleaner.delete([found.key for found in page], timeout_s=60)
