"""A strongly consistent object store in a dictionary: the reference model of the tests.

It behaves as S3 does for everything `ObjectStore` promises. Every call gives the event loop one
turn before and one after its effect, so tasks that race over it interleave as they would over a
network. It knows nothing of threads, faults or durability.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from s3kv.bucket.base import (
    CREATED,
    EXISTS,
    MISSING,
    Created,
    Exists,
    Missing,
    ObjectInfo,
    Received,
)
from s3kv.bucket.pages import Page, Pages
from s3kv.bucket.prefix import check_key, check_prefix
from s3kv.errors import Closed, Corrupt, Transient


@dataclass(frozen=True, slots=True)
class _Stored:
    body: bytes
    etag: str
    modified_s: float


class MemoryStore:
    """Implements `ObjectStore`. Owned by one event loop; `objects` may be read by tests."""

    def __init__(self, *, unix_s: Callable[[], float] = time.time, page_keys: int = 1000) -> None:
        """unix_s: the store's clock, in Unix seconds; page_keys: keys per list page."""
        self._unix_s = unix_s
        self._page_keys = page_keys
        self._stored: dict[str, _Stored] = {}
        self._closed = False

    @property
    def objects(self) -> Mapping[str, bytes]:
        """Everything stored, by key: a copy."""
        return {key: stored.body for key, stored in self._stored.items()}

    def write(self, key: str, body: bytes) -> str:
        """Store at once, outside of any event loop (for tests). Returns the ETag."""
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        self._stored[check_key(key)] = _Stored(bytes(body), etag, self._unix_s())
        return etag

    @asynccontextmanager
    async def _turn(self, timeout_s: float) -> AsyncIterator[None]:
        if self._closed:
            raise Closed("memory store is closed")
        if timeout_s <= 0:
            raise Transient("no time left")
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0)

    def _describe(self, key: str, stored: _Stored) -> ObjectInfo:
        age_s = max(0.0, self._unix_s() - stored.modified_s)
        return ObjectInfo(key, len(stored.body), stored.etag, stored.modified_s, age_s)

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
            return MISSING if stored is None else self._describe(key, stored)

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
        if stored is None:
            return MISSING
        if len(stored.body) > max_bytes:
            raise Corrupt(f"{key}: {len(stored.body)} bytes, at most {max_bytes} expected")
        return stored.body

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Fill the buffer from `start` on."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
            if stored is None:
                return MISSING
            part = stored.body[start : start + len(buffer)]
            buffer[: len(part)] = part
        return Received(len(part), len(stored.body), stored.etag)

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT."""
        check_key(key)
        async with self._turn(timeout_s):
            return self.write(key, bytes(body))

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """PUT if absent."""
        check_key(key)
        async with self._turn(timeout_s):
            taken = key in self._stored
            if not taken:
                self.write(key, body)
        return EXISTS if taken else CREATED

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of keys in byte order, each as of the moment it is asked for."""
        check_prefix(prefix)

        async def fetch(after: str | None) -> Page:
            async with self._turn(timeout_s):
                keys = sorted(
                    key
                    for key in self._stored
                    if key.startswith(prefix) and (after is None or key > after)
                )
                page = keys[: self._page_keys]
                objects = tuple(self._describe(key, self._stored[key]) for key in page)
            return Page(objects, page[-1] if len(keys) > len(page) else None)

        return Pages(fetch)

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes one level below."""
        check_prefix(prefix)
        async with self._turn(timeout_s):
            rests = (key[len(prefix) :] for key in self._stored if key.startswith(prefix))
            return sorted({prefix + rest.split("/")[0] + "/" for rest in rests if "/" in rest})

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete what is there."""
        for key in keys:
            check_key(key)
        async with self._turn(timeout_s):
            for key in keys:
                self._stored.pop(key, None)

    async def close(self) -> None:
        """Refuse everything from now on; the objects stay readable for tests."""
        self._closed = True
