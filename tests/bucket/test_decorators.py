from __future__ import annotations

from collections.abc import Callable

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.bucket.meter import Metered
from s3kv.bucket.retry import Retrying
from tests.bucket.contract import StoreContract
from tests.bucket.contract_upkeep import BeginUpload, UpkeepContract, VersionedContract

DECORATORS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "retrying": Retrying,
    "metered": Metered,
    "faulty": Faulty,
    "all of them": lambda store: Retrying(Metered(Faulty(store))),
}


@pytest.fixture(params=DECORATORS)
def decorate(request: pytest.FixtureRequest) -> Callable[[ObjectStore], ObjectStore]:
    return DECORATORS[request.param]


class TestDecorated(StoreContract, UpkeepContract):
    @pytest.fixture
    def below(self) -> MemoryStore:
        return MemoryStore(page_keys=50)

    @pytest.fixture
    async def store(
        self, decorate: Callable[[ObjectStore], ObjectStore], below: MemoryStore
    ) -> ObjectStore:
        return decorate(below)

    @pytest.fixture
    def begin_upload(self, below: MemoryStore) -> BeginUpload:
        async def begin_upload(key: str) -> str:
            return below.begin_upload(key).upload_id

        return begin_upload


class TestDecoratedWithVersions(VersionedContract):
    @pytest.fixture
    async def store(self, decorate: Callable[[ObjectStore], ObjectStore]) -> ObjectStore:
        return decorate(MemoryStore(versioned=True))
