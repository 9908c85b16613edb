"""One bucket's client, opened with the first request, and what its answers have in common.

Every request is bounded in time here and fails in our words. Nothing is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from s3kv.bucket.base import ObjectInfo
from s3kv.bucket.errors_map import translated
from s3kv.bucket.sdk import ThreadGuard, open_conversation
from s3kv.bucket.settings import BucketSettings
from s3kv.errors import Closed, Transient


class S3Session:
    """The aiobotocore client of one bucket. Owned by one event loop."""

    def __init__(self, settings: BucketSettings, guard: ThreadGuard | None) -> None:
        """Nothing is opened yet."""
        self.settings = settings
        self.address = settings.address
        self.bucket = settings.address.bucket
        self._guard = guard
        self._opening = asyncio.Lock()
        self._conversation: Any = None
        self._client: Any = None
        self._closed = False

    @asynccontextmanager
    async def talk(self, doing: str, timeout_s: float) -> AsyncIterator[Any]:
        """The client, for requests that end in time and fail in our words. May be nested."""
        self.raise_if_closed(doing)
        with translated(doing, self.settings):
            try:
                async with asyncio.timeout(timeout_s):
                    yield await self._open()
            except TimeoutError as error:
                raise Transient(f"{doing}: no answer within {timeout_s:.2f} s") from error

    def raise_if_closed(self, doing: str) -> None:
        """Raise `Closed` if it is."""
        if self._closed:
            raise Closed(f"{doing}: the store is closed")

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                conversation = open_conversation(self.settings, self._guard)
                self._client = await conversation.__aenter__()
                self._conversation = conversation
            return self._client

    def refuse(self) -> None:
        """Take no more requests; those on their way go on."""
        self._closed = True

    async def close(self) -> None:
        """Refuse, and close the connections. Idempotent."""
        self.refuse()
        async with self._opening:
            conversation, self._conversation, self._client = self._conversation, None, None
        if conversation is not None:
            await conversation.__aexit__(None, None, None)


def date_s(reply: Mapping[str, Any]) -> float | None:
    """The store's own clock at the time of its answer, in Unix seconds."""
    date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()


def age_s(since: datetime, now_s: float | None) -> float:
    """Seconds between a time in an answer and the answer's own Date; 0.0 without one."""
    # Date has whole seconds, the other may have more: never younger than new.
    return 0.0 if now_s is None else max(0.0, now_s - since.timestamp())


def etag_of(reply: Mapping[str, Any]) -> str:
    """The ETag without its quotes, empty where the store has none."""
    return str(reply.get("ETag", "")).strip('"')


def info_of(key: str, found: Mapping[str, Any], now_s: float | None) -> ObjectInfo:
    """What one object of a listing says."""
    modified = found["LastModified"]
    age = age_s(modified, now_s)
    return ObjectInfo(key, int(found["Size"]), etag_of(found), modified.timestamp(), age)
