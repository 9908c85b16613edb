"""Fixtures of the bucket suite: a store in memory, and one whose requests can be made to fail."""

from __future__ import annotations

import pytest

from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def faulty(memory: MemoryStore) -> Faulty:
    return Faulty(memory)
