"""An asynchronous iterator over list pages that survives a failed page.

A generator is dead after its first exception, and a listing of millions of keys would have to
start again. `Pages` asks for the same page again when it is advanced after a failure: this is
what `Retrying` builds on, so every store and decorator returns one from `list`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from s3kv.bucket.base import ObjectInfo


@dataclass(frozen=True, slots=True)
class Page:
    """One answer to a LIST; next_token continues it, None ends it."""

    objects: Sequence[ObjectInfo]
    next_token: str | None


class Pages(AsyncIterator[Sequence[ObjectInfo]]):
    """Iterates `fetch(token)`; owned by the one task that iterates."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[Page]]) -> None:
        """fetch: asks for the page at a token (None: the first); may raise and be asked again."""
        self._fetch = fetch
        self._token: str | None = None
        self._ended = False

    async def __anext__(self) -> Sequence[ObjectInfo]:
        """The next page. After an exception the same page is asked for again."""
        if self._ended:
            raise StopAsyncIteration
        page = await self._fetch(self._token)
        self._token = page.next_token
        self._ended = page.next_token is None
        return page.objects
