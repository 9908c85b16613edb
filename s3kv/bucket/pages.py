"""An asynchronous iterator over list pages that survives a failed page.

A generator is dead after its first exception, and a listing of millions of keys would have to
start again. `Pages` asks for the same page again when it is advanced after a failure: this is
what `Retrying` builds on, so every store and decorator returns one from `list_versions`; `list` is
one over `list_page`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from s3kv.bucket.base import ObjectInfo, ObjectStore

T = TypeVar("T")
Token = TypeVar("Token")


class Pages(AsyncIterator[Sequence[T]], Generic[T, Token]):
    """Iterates `fetch(token)`; owned by the one task that iterates."""

    def __init__(
        self, fetch: Callable[[Token | None], Awaitable[tuple[Sequence[T], Token | None]]]
    ) -> None:
        """fetch: asks for the page at a token (None: the first) and tells the token of the next.

        It may raise and be asked again.
        """
        self._fetch = fetch
        self._token: Token | None = None
        self._ended = False

    async def __anext__(self) -> Sequence[T]:
        """The next page. After an exception the same page is asked for again."""
        if self._ended:
            raise StopAsyncIteration
        found, self._token = await self._fetch(self._token)
        self._ended = self._token is None
        return found


def listed_pages(
    store: ObjectStore, prefix: str, timeout_s: float
) -> AsyncIterator[Sequence[ObjectInfo]]:
    """What `list` returns, made of the store's own `list_page`."""

    async def fetch(token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        page = await store.list_page(prefix, token, timeout_s=timeout_s)
        return page.objects, page.next_token

    return Pages(fetch)
