"""Counts what passes: requests by kind, bytes, seconds, failures. Nothing is decided here.

Placed below `Retrying`, it counts every attempt, which is what the store's bill counts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from s3kv.bucket.base import (
    ConditionalDelete,
    Created,
    Exists,
    Missing,
    ObjectInfo,
    ObjectStore,
    ObjectVersion,
    Page,
    Received,
    UploadInfo,
)
from s3kv.bucket.pages import listed_pages

RequestKind = Literal["get", "put", "head", "list", "delete", "create", "multipart", "copy"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything counted since the start. Mappings are copies.

    requests: by kind, as S3 bills them (a multipart PUT of n parts is n + 2 requests of kind
    `multipart`; a `copy` costs what a PUT costs); seconds: time spent waiting, by kind; errors: by
    exception name. Not counted: what a store without batches of conditional deletes is asked
    beyond one request per 1000 names, and the trial that finds that out.
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    received_bytes: int = 0
    sent_bytes: int = 0


class Meter:
    """The counters. The lock is between the loop thread that counts and those that read."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """monotonic_s: clock for the seconds."""
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._errors: Counter[str] = Counter()
        self._received_bytes = 0
        self._sent_bytes = 0

    def snapshot(self) -> Traffic:
        """The counts of this moment. From any thread."""
        with self._lock:
            return Traffic(
                dict(self._requests),
                dict(self._seconds),
                dict(self._errors),
                self._received_bytes,
                self._sent_bytes,
            )

    def add_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Count bytes that have arrived where they belong."""
        with self._lock:
            self._received_bytes += received
            self._sent_bytes += sent

    def add_requests(self, kind: RequestKind, request_count: int) -> None:
        """Count requests whose time and failures belong to another kind."""
        if request_count:
            with self._lock:
                self._requests[kind] += request_count

    @contextmanager
    def request(self, kind: RequestKind, request_count: int = 1) -> Iterator[None]:
        """Count the requests and the time of a block, and the name of what it raises."""
        started_s = self._monotonic_s()
        failure: str | None = None
        try:
            yield
        except StopAsyncIteration:
            request_count = 0  # the end of a listing is known without asking
            raise
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            with self._lock:
                self._requests[kind] += request_count
                spent_s = self._monotonic_s() - started_s
                self._seconds[kind] = self._seconds.get(kind, 0.0) + spent_s
                if failure is not None:
                    self._errors[failure] += 1


@dataclass(frozen=True, slots=True)
class MultipartSizes:
    """From which body on the store below sends parts, and how large they are (bytes)."""

    multipart_bytes: int
    part_bytes: int


class Metered:
    """Implements `ObjectStore` by another one, counting into a `Meter`."""

    def __init__(
        self,
        store: ObjectStore,
        meter: Meter | None = None,
        *,
        multipart: MultipartSizes | None = None,
    ) -> None:
        """meter: shared with whoever reads it; multipart: None if the store never splits."""
        self._store = store
        self.meter = meter or Meter()
        self._multipart = multipart

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        with self.meter.request("head"):
            return await self._store.stat(key, timeout_s=timeout_s)

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole."""
        with self.meter.request("get"):
            body = await self._store.get(key, max_bytes=max_bytes, timeout_s=timeout_s)
        if isinstance(body, bytes):
            self.meter.add_bytes(received=len(body))
        return body

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Ranged GET."""
        with self.meter.request("get"):
            outcome = await self._store.get_into(key, start, buffer, timeout_s=timeout_s)
        if isinstance(outcome, Received):
            self.meter.add_bytes(received=outcome.received_bytes)
        return outcome

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT."""
        size, sizes = len(body), self._multipart
        if sizes is not None and size > sizes.multipart_bytes:
            counted = self.meter.request("multipart", 2 + -(-size // sizes.part_bytes))
        else:
            counted = self.meter.request("put")
        with counted:
            etag = await self._store.put(key, body, timeout_s=timeout_s)
        self.meter.add_bytes(sent=size)
        return etag

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """Conditional PUT; the body has been sent whatever the answer."""
        with self.meter.request("create"):
            outcome = await self._store.create(key, body, timeout_s=timeout_s)
        self.meter.add_bytes(sent=len(body))
        return outcome

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages, one request each."""
        return listed_pages(self, prefix, timeout_s)

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """One page."""
        with self.meter.request("list"):
            return await self._store.list_page(prefix, token, timeout_s=timeout_s)

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes; counted as one request per 1000."""
        with self.meter.request("list"):
            return await self._store.list_prefixes(prefix, timeout_s=timeout_s)

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete, one request per 1000 keys."""
        with self.meter.request("delete", _batches(keys)):
            await self._store.delete(keys, timeout_s=timeout_s)

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """Asked once in a store's life, not counted."""
        return await self._store.conditional_delete(timeout_s=timeout_s)

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Delete, one request per 1000 objects; what was refused is looked at."""
        with self.meter.request("delete", _batches(found)):
            kept = await self._store.delete_listed(found, timeout_s=timeout_s)
        self.meter.add_requests("head", len(kept))
        return kept

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """A copy, and the look at its source."""
        self.meter.add_requests("head", 1)
        with self.meter.request("copy"):
            return await self._store.copy(source, key, timeout_s=timeout_s)

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Unfinished uploads; counted as one request."""
        with self.meter.request("list"):
            return await self._store.list_uploads(prefix, timeout_s=timeout_s)

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Abort, a request that costs what a delete costs."""
        with self.meter.request("delete"):
            await self._store.abort_upload(upload, timeout_s=timeout_s)

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages, one request each."""
        return _MeteredPages(self.meter, self._store.list_versions(prefix, timeout_s=timeout_s))

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete, one request per 1000 versions."""
        with self.meter.request("delete", _batches(versions)):
            await self._store.delete_versions(versions, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


def _batches(named: Sequence[object]) -> int:
    return -(-len(named) // 1000)


class _MeteredPages(AsyncIterator[Sequence[ObjectVersion]]):
    def __init__(self, meter: Meter, pages: AsyncIterator[Sequence[ObjectVersion]]) -> None:
        self._meter = meter
        self._pages = pages

    async def __anext__(self) -> Sequence[ObjectVersion]:
        with self._meter.request("list"):
            return await anext(self._pages)
