"""Readers and writers of one index over a MemoryStore, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.core.records import RecordSet, make_records
from s3kv.runtime.index_client import IndexReader, IndexSettings
from s3kv.runtime.index_writer import IndexWriter
from tests.fakes.clock import FakeClock
from tests.fakes.namespaces import make_namespace

T = TypeVar("T")

NAMESPACE = make_namespace()


def chunk(*fps: int) -> RecordSet:
    return make_records(fps, 1_800_000_000, 16)


def live(reader: IndexReader) -> list[int]:
    return [int(fp) for fp in reader.snapshot.live().fps]


class Bench:
    """A clock, a bucket with a fault injector, and the processes that share them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(unix_s=self.clock.unix_s)
        self.store = Faulty(self.memory)
        self.tasks: list[asyncio.Task[None]] = []

    def reader(self, settings: IndexSettings | None = None) -> IndexReader:
        settings = settings or IndexSettings()
        return IndexReader(self.store, NAMESPACE, self.clock, settings, random.Random(1))

    def writer(
        self, settings: IndexSettings | None = None, store: ObjectStore | None = None
    ) -> IndexWriter:
        settings = settings or IndexSettings()
        return IndexWriter(store or self.store, NAMESPACE, self.clock, settings, random.Random(2))

    async def start(self, client: IndexReader) -> asyncio.Task[None]:
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        await self.clock.settle()
        return task

    async def begin(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        await self.clock.settle()
        return task

    def names(self, part: str) -> list[str]:
        return sorted(key for key in self.memory.objects if part in key)

    def calls(self, operation: str, part: str = "") -> int:
        return sum(op == operation and part in key for op, key in self.store.calls)


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
