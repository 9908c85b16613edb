"""Second chances: repeat what failed in a way that may pass, inside the caller's time.

`timeout_s` bounds the call with all its attempts and pauses. `Throttled` waits an order of
magnitude longer than other failures; `Denied`, `Corrupt`, `Missing` and `Exists` are answers and
are never asked for again. A `create` whose reply was lost answers `Exists` on the next attempt:
who owns the name is for the caller to find out by reading it. A conditional delete whose reply was
lost finds nothing on the next attempt, which is no error, or another upload, which is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

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
from s3kv.errors import Throttled, Transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the attempts of one call.

    attempt_count: with the first one; pause_s, throttled_pause_s: upper end of the first random
    pause, doubled each time (full jitter); longest_pause_s: where the doubling ends.
    """

    attempt_count: int = 5
    pause_s: float = 0.1
    throttled_pause_s: float = 1.0
    longest_pause_s: float = 10.0


class Retrying:
    """Implements `ObjectStore` by repeating the calls of another one."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """sleep: replaced in tests of the pauses."""
        policy = policy or RetryPolicy()
        self._store = store
        self._policy = policy
        self._sleep = sleep
        self._wait = wait_random_exponential(policy.pause_s, policy.longest_pause_s)
        self._wait_throttled = wait_random_exponential(
            policy.throttled_pause_s, policy.longest_pause_s
        )

    def _pause_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        return (self._wait_throttled if isinstance(error, Throttled) else self._wait)(state)

    async def _repeat(self, call: Callable[[float], Awaitable[T]], timeout_s: float) -> T:
        """Run call(seconds left) until it answers, fails for good, or time is up."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s

        def is_last(state: RetryCallState) -> bool:
            spent = state.attempt_number >= self._policy.attempt_count
            return spent or loop.time() + state.upcoming_sleep >= deadline_s

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Transient),
            wait=self._pause_s,
            stop=is_last,
            sleep=self._sleep,
            reraise=True,
        )

        async def attempt() -> T:
            return await call(deadline_s - loop.time())

        return await attempts(attempt)

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD, repeated."""
        return await self._repeat(lambda s: self._store.stat(key, timeout_s=s), timeout_s)

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole, repeated."""
        return await self._repeat(
            lambda s: self._store.get(key, max_bytes=max_bytes, timeout_s=s), timeout_s
        )

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Ranged GET; each attempt fills the buffer from its beginning."""
        return await self._repeat(
            lambda s: self._store.get_into(key, start, buffer, timeout_s=s), timeout_s
        )

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT, the whole body again."""
        return await self._repeat(lambda s: self._store.put(key, body, timeout_s=s), timeout_s)

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """Conditional PUT; `Exists` may mean an earlier attempt of this very call."""
        return await self._repeat(lambda s: self._store.create(key, body, timeout_s=s), timeout_s)

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages, each repeated on its own."""
        return listed_pages(self, prefix, timeout_s)

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """One page, repeated."""
        return await self._repeat(
            lambda s: self._store.list_page(prefix, token, timeout_s=s), timeout_s
        )

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes, repeated."""
        return await self._repeat(
            lambda s: self._store.list_prefixes(prefix, timeout_s=s), timeout_s
        )

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete, repeated."""
        await self._repeat(lambda s: self._store.delete(keys, timeout_s=s), timeout_s)

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """The trial, repeated as a whole."""
        return await self._repeat(lambda s: self._store.conditional_delete(timeout_s=s), timeout_s)

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Conditional delete, repeated."""
        return await self._repeat(
            lambda s: self._store.delete_listed(found, timeout_s=s), timeout_s
        )

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """Copy, repeated; False may mean an earlier attempt of this very call."""
        return await self._repeat(lambda s: self._store.copy(source, key, timeout_s=s), timeout_s)

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Unfinished uploads, repeated."""
        return await self._repeat(
            lambda s: self._store.list_uploads(prefix, timeout_s=s), timeout_s
        )

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Abort, repeated."""
        await self._repeat(lambda s: self._store.abort_upload(upload, timeout_s=s), timeout_s)

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages, each repeated on its own."""
        return _RepeatedPages(self, prefix, timeout_s)

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete of versions, repeated."""
        await self._repeat(lambda s: self._store.delete_versions(versions, timeout_s=s), timeout_s)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


class _RepeatedPages(AsyncIterator[Sequence[ObjectVersion]]):
    """A listing whose failed pages are asked for again (see `bucket.pages`)."""

    def __init__(self, retrying: Retrying, prefix: str, timeout_s: float) -> None:
        self._retrying = retrying
        self._timeout_s = timeout_s
        self._pages = retrying._store.list_versions(prefix, timeout_s=timeout_s)

    async def __anext__(self) -> Sequence[ObjectVersion]:
        # A page keeps the time limit it was listed with; the outer limit holds over all attempts.
        async def advance(seconds_left: float) -> Sequence[ObjectVersion] | None:
            try:
                async with asyncio.timeout(seconds_left):
                    return await anext(self._pages, None)
            except TimeoutError:
                raise Transient(f"no page of versions within {self._timeout_s:.1f} s") from None

        page = await self._retrying._repeat(advance, self._timeout_s)
        if page is None:
            raise StopAsyncIteration
        return page
