"""A store that fails on purpose, by script: for tests and for the demo.

Wraps any store and applies the first fault whose operation and key match. Nothing is random:
what fails, and how often, is written in the test that needs it.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, TypeVar

from s3kv.bucket.base import (
    MISSING,
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
from s3kv.bucket.capabilities import PROBE_PREFIX
from s3kv.bucket.pages import Pages, listed_pages
from s3kv.errors import S3KVError

T = TypeVar("T")

Operation: TypeAlias = Literal[
    "stat",
    "get",
    "get_into",
    "put",
    "create",
    "list",
    "list_prefixes",
    "delete",
    "conditional_delete",
    "delete_listed",
    "copy",
    "list_uploads",
    "abort_upload",
    "list_versions",
    "delete_versions",
]
"""What can be made to fail; `list` is any page of objects, asked for by `list` or `list_page`."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The request never arrives: no effect, and this error."""

    error: S3KVError


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The request takes effect, and this error is all that the caller sees."""

    error: S3KVError


@dataclass(frozen=True, slots=True)
class Hold:
    """The request waits, before its effect, until the test sets `released`."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Only the first body_bytes bytes arrive, of what is read as well as of what is written."""

    body_bytes: int


@dataclass(frozen=True, slots=True)
class Flip:
    """The byte at byte_index arrives with all its bits inverted, read or written."""

    byte_index: int


@dataclass(frozen=True, slots=True)
class Vanish:
    """Reads find nothing."""


Fault: TypeAlias = Fail | LoseReply | Hold | Truncate | Flip | Vanish


@dataclass(slots=True)
class _Rule:
    fault: Fault
    operations: frozenset[str]
    keys: str
    skip_count: int
    left_count: int | None

    def applies(self, operation: str, keys: Sequence[str]) -> bool:
        """Whether this call is hit; counts it."""
        if self.operations and operation not in self.operations:
            return False
        if self.left_count == 0 or not any(fnmatchcase(key, self.keys) for key in keys):
            return False
        if self.skip_count > 0:
            self.skip_count -= 1
            return False
        if self.left_count is not None:
            self.left_count -= 1
        return True


class Faulty:
    """Implements `ObjectStore` by another one, with faults. Owned by one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        """Without rules it changes nothing."""
        self._store = store
        self._rules: builtins.list[_Rule] = []
        self.calls: builtins.list[tuple[Operation, str]] = []
        """Every call so far: operation and key (prefix of a list, first key of a delete)."""

    def inject(
        self,
        fault: Fault,
        *operations: Operation,
        keys: str = "*",
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Let matching calls fail.

        operations: all if none is given; keys: shell pattern over key or prefix; times: how many
        calls, None for all; skip: how many matching calls pass before.
        """
        self._rules.append(_Rule(fault, frozenset(operations), keys, skip, times))

    def heal(self) -> None:
        """Forget every rule."""
        self._rules.clear()

    def _fault(self, operation: Operation, keys: Sequence[str]) -> Fault | None:
        self.calls.append((operation, keys[0] if keys else ""))
        return next((rule.fault for rule in self._rules if rule.applies(operation, keys)), None)

    async def _go(self, fault: Fault | None, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call under the faults that concern requests and replies."""
        match fault:
            case Fail(error):
                raise error
            case LoseReply(error):
                await call()
                raise error
            case Hold(entered, released):
                entered.set()
                await released.wait()
        return await call()

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        fault = self._fault("stat", (key,))
        if isinstance(fault, Vanish):
            return MISSING
        return await self._go(fault, lambda: self._store.stat(key, timeout_s=timeout_s))

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole, perhaps damaged."""
        fault = self._fault("get", (key,))
        if isinstance(fault, Vanish):
            return MISSING
        body = await self._go(
            fault, lambda: self._store.get(key, max_bytes=max_bytes, timeout_s=timeout_s)
        )
        return body if isinstance(body, Missing) else _damaged(fault, body)

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Ranged GET, perhaps damaged; byte_index and body_bytes count within the range."""
        fault = self._fault("get_into", (key,))
        if isinstance(fault, Vanish):
            return MISSING
        outcome = await self._go(
            fault, lambda: self._store.get_into(key, start, buffer, timeout_s=timeout_s)
        )
        if isinstance(outcome, Missing):
            return outcome
        body = _damaged(fault, bytes(buffer[: outcome.received_bytes]))
        buffer[: len(body)] = body
        return Received(len(body), outcome.total_bytes, outcome.etag)

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """PUT, perhaps of a damaged body."""
        fault = self._fault("put", (key,))
        damaged = _damaged(fault, bytes(body)) if isinstance(fault, Truncate | Flip) else body
        return await self._go(fault, lambda: self._store.put(key, damaged, timeout_s=timeout_s))

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """Conditional PUT, perhaps of a damaged body."""
        fault = self._fault("create", (key,))
        damaged = _damaged(fault, body)
        return await self._go(fault, lambda: self._store.create(key, damaged, timeout_s=timeout_s))

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages; each page is a call of its own. `Vanish` ends the listing."""
        return listed_pages(self, prefix, timeout_s)

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """One page. `Vanish` makes it an empty last one."""
        fault = self._fault("list", (prefix,))
        if isinstance(fault, Vanish):
            return Page((), None)
        return await self._go(
            fault, lambda: self._store.list_page(prefix, token, timeout_s=timeout_s)
        )

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes."""
        fault = self._fault("list_prefixes", (prefix,))
        if isinstance(fault, Vanish):
            return ()
        return await self._go(fault, lambda: self._store.list_prefixes(prefix, timeout_s=timeout_s))

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete; hit if any of the keys matches."""
        fault = self._fault("delete", keys)
        await self._go(fault, lambda: self._store.delete(keys, timeout_s=timeout_s))

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """The trial; its key is the folder of the trial's objects."""
        fault = self._fault("conditional_delete", (PROBE_PREFIX,))
        return await self._go(fault, lambda: self._store.conditional_delete(timeout_s=timeout_s))

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Conditional delete; hit if any of the keys matches."""
        fault = self._fault("delete_listed", [each.key for each in found])
        return await self._go(fault, lambda: self._store.delete_listed(found, timeout_s=timeout_s))

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """Copy; hit if source or target matches. `Vanish`: the source is gone."""
        fault = self._fault("copy", (source.key, key))
        if isinstance(fault, Vanish):
            return False
        return await self._go(fault, lambda: self._store.copy(source, key, timeout_s=timeout_s))

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Unfinished uploads."""
        fault = self._fault("list_uploads", (prefix,))
        if isinstance(fault, Vanish):
            return ()
        return await self._go(fault, lambda: self._store.list_uploads(prefix, timeout_s=timeout_s))

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Abort."""
        fault = self._fault("abort_upload", (upload.key,))
        await self._go(fault, lambda: self._store.abort_upload(upload, timeout_s=timeout_s))

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages; each page is a call of its own. `Vanish` ends the listing."""
        pages = self._store.list_versions(prefix, timeout_s=timeout_s)

        async def fetch(_: str | None) -> tuple[Sequence[ObjectVersion], str | None]:
            fault = self._fault("list_versions", (prefix,))
            if isinstance(fault, Vanish):
                return (), None
            found = await self._go(fault, lambda: _next(pages))
            return ((), None) if found is None else (found, "more")

        return Pages(fetch)

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete of versions; hit if any of the keys matches."""
        fault = self._fault("delete_versions", [each.key for each in versions])
        await self._go(fault, lambda: self._store.delete_versions(versions, timeout_s=timeout_s))

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


async def _next(
    pages: AsyncIterator[Sequence[ObjectVersion]],
) -> Sequence[ObjectVersion] | None:
    return await anext(pages, None)


def _damaged(fault: Fault | None, body: bytes) -> bytes:
    match fault:
        case Truncate(body_bytes):
            return body[:body_bytes]
        case Flip(index) if index < len(body):
            return body[:index] + bytes([body[index] ^ 0xFF]) + body[index + 1 :]
    return body
