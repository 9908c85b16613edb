"""How the suites open a store on a test server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.connect import BucketSettings, connect, parse_uri
from s3kv.bucket.s3 import S3Store
from s3kv.bucket.sdk import make_body_client
from tests.bucket.contract_upkeep import BeginUpload
from tests.servers import create_bucket

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


def uploads_by(endpoint_url: str | None, uri: str) -> BeginUpload:
    """Begins uploads beside the store under test."""
    settings = settings_for(endpoint_url, uri)

    def begin(key: str) -> str:
        client = make_body_client(settings, None)
        try:
            name = settings.address.name_of(key)
            reply = client.create_multipart_upload(Bucket=settings.address.bucket, Key=name)
        finally:
            client.close()
        return str(reply["UploadId"])

    async def begin_upload(key: str) -> str:
        return await asyncio.to_thread(begin, key)

    return begin_upload


def versioned_uri(endpoint_url: str) -> str:
    """A fresh prefix of a bucket that keeps versions."""
    uri = f"s3://s3kv-versions/t-{os.urandom(6).hex()}"
    create_bucket(endpoint_url, "s3kv-versions")
    client = make_body_client(settings_for(endpoint_url, uri), None)
    try:
        client.put_bucket_versioning(
            Bucket="s3kv-versions", VersioningConfiguration={"Status": "Enabled"}
        )
    finally:
        client.close()
    return uri
