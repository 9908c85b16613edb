"""How the suites open a store on a test server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.connect import BucketSettings, connect, parse_uri
from s3kv.bucket.s3 import S3Store

MIB = 1 << 20


def settings_for(endpoint_url: str | None, uri: str, **changes: Any) -> BucketSettings:
    """Settings of a store whose bodies above 5 MiB go in parts."""
    given: dict[str, Any] = {"multipart_bytes": 5 * MIB, "part_bytes": 5 * MIB, "body_threads": 4}
    return BucketSettings(address=parse_uri(uri), endpoint_url=endpoint_url, **(given | changes))


@asynccontextmanager
async def plain_store(endpoint_url: str | None, uri: str, **changes: Any) -> AsyncIterator[S3Store]:
    """An S3Store without decorators, closed at the end."""
    store = S3Store(settings_for(endpoint_url, uri, **changes))
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connected_store(
    endpoint_url: str | None, uri: str, **changes: Any
) -> AsyncIterator[ObjectStore]:
    """What `connect` gives, closed at the end."""
    store = connect(settings_for(endpoint_url, uri, **changes))
    try:
        yield store
    finally:
        await store.close()
