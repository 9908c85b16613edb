"""An HTTP proxy in front of a real store that misbehaves where a test says so.

Without rules it passes every byte on as it came, the Host header included, so signatures stay
valid. Rules apply to requests by method and a part of the path; the first one that matches decides.
Everything runs on one thread of its own; all methods may be called from the test's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from tests.faults.wire import (
    HEAD_BYTES,
    Head,
    Upstream,
    close_writer,
    error_answer,
    read_body,
    read_head,
)

HOST = "127.0.0.1"
LOOK_S = 0.005
"""How often a held request looks whether it was released."""


@dataclass(frozen=True)
class Fail:
    """The store is not asked; the answer is an S3 error with this status."""

    status: int = 500
    code: str = "InternalError"


@dataclass(frozen=True)
class Drop:
    """The store is not asked; the connection is closed without a byte."""


@dataclass(frozen=True)
class Cut:
    """The store's answer ends after body_bytes bytes of its body: the connection is closed."""

    body_bytes: int = 100


@dataclass(frozen=True)
class Hold:
    """Nothing happens until `released` is set; then the request goes its normal way, late."""

    entered: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


Action: TypeAlias = Fail | Drop | Cut | Hold


@dataclass(frozen=True)
class Seen:
    """One request that arrived. path: decoded, without the query."""

    method: str
    path: str
    query: str

    @property
    def kind(self) -> str:
        """What it concerns: `data`, `idx`, `namespace`, `list` or `other`."""
        if "list-type=" in self.query or "prefix=" in self.query:
            return "list"
        for part in ("data", "idx"):
            if f"/{part}/" in self.path:
                return part
        return "namespace" if self.path.endswith("NAMESPACE.json") else "other"


@dataclass
class _Rule:
    action: Action
    method: str
    part: str
    skip_count: int
    left_count: int | None

    def applies(self, seen: Seen) -> bool:
        """Whether this request is hit; counts it."""
        if self.method not in ("", seen.method) or self.part not in seen.path:
            return False
        if self.left_count == 0:
            return False
        if self.skip_count > 0:
            self.skip_count -= 1
            return False
        if self.left_count is not None:
            self.left_count -= 1
        return True


class Proxy:
    """Use as `with proxy(store.endpoint_url) as between`. Everything ends with the block."""

    def __init__(self, target_url: str) -> None:
        target = urlsplit(target_url)
        assert target.hostname is not None
        assert target.port is not None
        self._target = (target.hostname, target.port)
        self._port = 0
        self._rules: list[_Rule] = []
        self._seen: list[Seen] = []
        # The test's thread writes rules and reads what was seen, the proxy's thread vice versa.
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy")

    # ------------------------------------------------------------ the test's side
    @property
    def endpoint_url(self) -> str:
        """What clients connect to; stays the same over `vanish` and `come_back`."""
        return f"http://{HOST}:{self._port}"

    def inject(
        self,
        action: Action,
        *,
        method: str = "",
        part: str = "",
        times: int | None = None,
        skip: int = 0,
    ) -> None:
        """Let matching requests fail.

        method, part: of the path; empty for all; times: how many requests, None for all; skip: how
        many matching requests pass before.
        """
        with self._lock:
            self._rules.append(_Rule(action, method, part, skip, times))

    def heal(self) -> None:
        """Forget every rule and let go of what is held."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            if isinstance(rule.action, Hold):
                rule.action.released.set()

    def seen(self) -> list[Seen]:
        """Every request so far, refused ones included."""
        with self._lock:
            return list(self._seen)

    def count(self, method: str = "", kind: str = "", part: str = "") -> int:
        """How many requests so far match."""
        return sum(
            method in ("", one.method) and kind in ("", one.kind) and part in one.path
            for one in self.seen()
        )

    def vanish(self) -> None:
        """The store is gone: connections are refused, open ones are closed."""
        self._call(self._close_all())

    def come_back(self) -> None:
        """The store listens again on its old port."""
        self._call(self._listen())

    # -------------------------------------------------------------- life of the thread
    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """End every connection and the thread."""
        self._stopping.set()
        self._call(self._close_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _call(self, work: asyncio.Future[None] | object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, HOST, self._port, limit=HEAD_BYTES, backlog=64
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close_all(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # ------------------------------------------------------------------ connections
    async def _accept(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        store = Upstream(*self._target)
        try:
            while await self._exchange(client_in, client_out, store):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            await store.close()
            await close_writer(client_out)

    async def _exchange(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, store: Upstream
    ) -> bool:
        """One request and its answer; whether the connection lives on."""
        head = await read_head(client_in)
        if "expect" in head.headers:
            client_out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(client_in, head)
        action = self._decide(head)
        match action:
            case Fail(status, code):
                client_out.write(error_answer(status, code, has_body=head.method != "HEAD"))
                await client_out.drain()
                return True
            case Drop():
                return False
            case Hold(entered, released):
                entered.set()
                while not (released.is_set() or self._stopping.is_set()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)  # threads set these events
        limit = action.body_bytes if isinstance(action, Cut) else None
        return await store.exchange(head, body, client_out, limit)

    def _decide(self, head: Head) -> Action | None:
        path, _, query = head.target.partition("?")
        seen = Seen(head.method, unquote(path), query)
        with self._lock:
            self._seen.append(seen)
            return next((rule.action for rule in self._rules if rule.applies(seen)), None)


@contextmanager
def proxy(target_url: str) -> Iterator[Proxy]:
    """A running proxy in front of the store at target_url."""
    between = Proxy(target_url)
    between.start()
    try:
        yield between
    finally:
        between.stop()
