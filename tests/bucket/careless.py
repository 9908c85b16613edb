"""A proxy that makes a store forget conditions.

Those are If-Match of a DELETE, ETags of DeleteObjects, and If-None-Match of a PUT.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.faults.wire import Head, Upstream, close_writer, read_body, read_head

HOST = "127.0.0.1"
HEAD_BYTES = 1 << 20

_ETAG = re.compile(rb"<ETag>.*?</ETag>")


@asynccontextmanager
async def careless_proxy(
    target_url: str,
    *,
    forgets_batches: bool = False,
    forgets_singles: bool = False,
    forgets_creates: bool = False,
) -> AsyncIterator[str]:
    """Endpoint URL of the proxy, which lives in this event loop.

    target_url: a store that checks no signatures.
    """
    target = urlsplit(target_url)
    assert target.hostname is not None
    assert target.port is not None
    address = (target.hostname, target.port)
    open_tasks: set[asyncio.Task[None]] = set()

    async def exchange(
        client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, store: Upstream
    ) -> bool:
        head = await read_head(client_in)
        if "expect" in head.headers:
            client_out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(client_in, head)
        if forgets_batches and head.method == "POST" and "delete" in head.target.split("?")[-1]:
            body = _ETAG.sub(lambda found: b" " * len(found[0]), body)
        if forgets_singles and head.method == "DELETE":
            head = _without(head, "if-match")
        if forgets_creates and head.method == "PUT":
            head = _without(head, "if-none-match")
        return await store.exchange(head, body, client_out, None)

    async def accept(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        store = Upstream(*address)
        try:
            while await exchange(client_in, client_out, store):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            open_tasks.discard(task)
            await store.close()
            await close_writer(client_out)

    server = await asyncio.start_server(accept, HOST, 0, limit=HEAD_BYTES)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)


def _without(head: Head, name: str) -> Head:
    drop = f"{name}:".encode()
    kept = tuple(line for line in head.lines if not line.lower().startswith(drop))
    return Head(kept, {key: value for key, value in head.headers.items() if key != name})
