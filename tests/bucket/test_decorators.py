from __future__ import annotations

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.bucket.meter import Metered
from s3kv.bucket.retry import Retrying
from tests.bucket.contract import StoreContract


class TestRetrying(StoreContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return Retrying(MemoryStore(page_keys=50))


class TestMetered(StoreContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return Metered(MemoryStore(page_keys=50))


class TestFaulty(StoreContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return Faulty(MemoryStore(page_keys=50))


class TestAllOfThem(StoreContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return Retrying(Metered(Faulty(MemoryStore(page_keys=50))))
