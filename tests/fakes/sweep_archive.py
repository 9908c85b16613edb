"""An archive whose shards are as old as a test wants them: written as engines write it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import Any, cast

from s3kv.bucket.base import Missing, ObjectInfo, ObjectStore, Page, UploadInfo
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.subjects import subject_of
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.keys import namespace_key, set_key, shard_key
from s3kv.core.pinset import encode_set, make_set
from s3kv.core.records import DEAD, RecordSet, make_records
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool
from s3kv.runtime.sweeping import (
    NamespaceReport,
    OnFolders,
    Orders,
    Subject,
    choose_cutoff,
    sweep_namespace,
)
from tests.fakes.clock import FakeClock
from tests.fakes.small_archive import GEOMETRY, TIMEOUT_S, small_namespace

SWEEP = Orders(deed="sweep")


def hash_of(name: str) -> BlockHash:
    return BlockHash(hashlib.sha256(name.encode()).digest())


class SweepArchive:
    """One namespace of a store; its chunks have names, and one shard each."""

    def __init__(self, store: ObjectStore, clock: Clock, label: str = "", writers: int = 1) -> None:
        self.store = store
        self.clock = clock
        self.namespace = small_namespace(label)
        self.id = self.namespace.id
        self.subject: Subject = subject_of(self.namespace)
        self._writers = writers
        self._tool = IndexTool(store, self.id, clock)

    async def begin(self) -> None:
        await self.store.put(namespace_key(self.id), self.namespace.document, timeout_s=TIMEOUT_S)

    def keys(self, name: str) -> list[str]:
        count = self._writers
        return [shard_key(self.id, hash_of(name), writer, count) for writer in range(count)]

    async def upload(self, name: str, blocks: int = 4, writers: Sequence[int] | None = None) -> int:
        """Bytes of the shards, which nobody lists yet."""
        size = GEOMETRY.header_bytes + blocks * GEOMETRY.block_bytes
        keys = self.keys(name)
        chosen = range(self._writers) if writers is None else writers
        for writer in chosen:
            body = random.Random(f"{name} {writer} {self.clock.monotonic_s()}").randbytes(size)
            await self.store.put(keys[writer], body, timeout_s=TIMEOUT_S)
        return size * len(chosen)

    async def announce(self, *names: str, blocks: int = 4, age_s: float = 0.0) -> None:
        """Records of a use so long ago."""
        await self.commit(make_records(self._fps(names), self._seen_s(age_s), blocks))

    async def report_lost(self, *names: str, age_s: float = 0.0) -> None:
        await self.commit(make_records(self._fps(names), self._seen_s(age_s), 0, DEAD))

    async def commit(self, records: RecordSet) -> None:
        await self._tool.commit(records)

    async def fold(self) -> None:
        """The inbox becomes a tick."""
        await self._tool.follow()
        await self._tool.sequence()

    async def save(self, *names: str, blocks: int = 4, age_s: float = 0.0) -> None:
        for name in names:
            await self.upload(name, blocks)
        await self.announce(*names, blocks=blocks, age_s=age_s)

    async def pin(self, set_name: str, *names: str) -> None:
        pinned = make_set(self.id, set_name, {hash_of(name): 4 for name in names})
        await self.store.put(set_key(self.id, set_name), encode_set(pinned), timeout_s=TIMEOUT_S)

    async def live(self) -> set[str]:
        """Fingerprints, as text, that a reader who knows nothing finds."""
        reader = IndexTool(self.store, self.id, self.clock)
        await reader.open()
        return {hex(fp) for fp in reader.snapshot.live().fps.tolist()}

    def names(self, *names: str) -> set[str]:
        """What `live` calls these chunks."""
        return {hex(fp) for fp in self._fps(names).tolist()}

    def _fps(self, names: Sequence[str]) -> Any:
        return fingerprints([hash_of(name) for name in names])

    def _seen_s(self, age_s: float) -> int:
        return int(self.clock.unix_s() - age_s)


class Place:
    """An archive in memory under a clock of its own."""

    def __init__(self, writers: int = 1) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(unix_s=self.clock.unix_s)
        self.archive = SweepArchive(self.memory, self.clock, writers=writers)

    async def sweep(
        self,
        orders: Orders = SWEEP,
        store: ObjectStore | None = None,
        done: Collection[str] = (),
        on_folders: OnFolders = lambda folders: None,
    ) -> NamespaceReport:
        return await sweep_namespace(
            store or self.memory,
            self.archive.subject,
            self.clock,
            orders,
            done=done,
            on_folders=on_folders,
        )

    async def cutoff(self, ttl_s: float | None = None, max_bytes: int | None = None) -> int:
        ttl = None if ttl_s is None else int(ttl_s)
        return await choose_cutoff(self.memory, [self.archive.subject], self.clock, ttl, max_bytes)

    def there(self, *names: str) -> list[str]:
        """Those of the chunks that are there with all their shards."""
        return [
            name
            for name in names
            if all(key in self.memory.objects for key in self.archive.keys(name))
        ]


def aged(store: ObjectStore, age_s: float) -> ObjectStore:
    """The store as it would look so much later: every object and upload is older."""
    return cast(ObjectStore, _Aged(store, age_s))


class _Aged:
    def __init__(self, store: ObjectStore, age_s: float) -> None:
        self._store = store
        self._age_s = age_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _older(self, found: ObjectInfo) -> ObjectInfo:
        modified_s = found.modified_s - self._age_s
        return replace(found, modified_s=modified_s, age_s=found.age_s + self._age_s)

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        found = await self._store.stat(key, timeout_s=timeout_s)
        return found if isinstance(found, Missing) else self._older(found)

    async def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        async for page in self._store.list(prefix, timeout_s=timeout_s):
            yield [self._older(found) for found in page]

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        page = await self._store.list_page(prefix, token, timeout_s=timeout_s)
        return Page([self._older(found) for found in page.objects], page.next_token)

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        found = await self._store.list_uploads(prefix, timeout_s=timeout_s)
        return [replace(each, age_s=each.age_s + self._age_s) for each in found]
