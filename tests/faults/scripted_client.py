"""A client on a scripted server, as the fault suites use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from s3kv.bucket.connect import RetryPolicy
from s3kv.bucket.s3 import S3Store
from tests.bucket.stores import plain_store
from tests.faults.http_server import ScriptedServer

URI = "s3://bucket/pre"
WHOLE = bytes(range(256)) * 4096  # 1 MiB
QUICK = RetryPolicy(pause_s=0.001, throttled_pause_s=0.001)
BODY = bytes(200_000)


@asynccontextmanager
async def opened(server: ScriptedServer, **changes: Any) -> AsyncIterator[S3Store]:
    async with plain_store(server.endpoint_url, URI, **changes) as store:
        yield store
