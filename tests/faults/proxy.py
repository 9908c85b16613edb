"""An HTTP proxy in front of a real store that misbehaves where a test says so.

Without rules it passes every byte on as it came, the Host header included, so signatures stay
valid. Rules apply to requests by method and a part of the path; the first one that matches decides.
Everything runs on one thread of its own; all methods may be called from the test's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16
HEAD_BYTES = 1 << 20
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
        store = _Upstream(*self._target)
        try:
            while await self._exchange(client_in, client_out, store):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            await store.close()
            await _close(client_out)

    async def _exchange(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, store: _Upstream
    ) -> bool:
        """One request and its answer; whether the connection lives on."""
        head = await _read_head(client_in)
        if "expect" in head.headers:
            client_out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _read_body(client_in, head)
        action = self._decide(head)
        match action:
            case Fail(status, code):
                client_out.write(_error(status, code, has_body=head.method != "HEAD"))
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

    def _decide(self, head: _Head) -> Action | None:
        path, _, query = head.target.partition("?")
        seen = Seen(head.method, unquote(path), query)
        with self._lock:
            self._seen.append(seen)
            return next((rule.action for rule in self._rules if rule.applies(seen)), None)


@dataclass(frozen=True)
class _Head:
    """First line and headers. lines: as they came; headers: names in lower case."""

    lines: tuple[bytes, ...]
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.lines[0].split(b" ")[0].decode()

    @property
    def target(self) -> str:
        return self.lines[0].split(b" ")[1].decode()

    @property
    def status(self) -> int:
        return int(self.lines[0].split(b" ")[1])

    def raw(self, *, without: str = "") -> bytes:
        """The bytes as they came, but for one header."""
        drop = f"{without}:".encode()
        kept = [line for line in self.lines if not (without and line.lower().startswith(drop))]
        return b"".join((*kept, b"\r\n"))


class _Upstream:
    """The connection to the store that belongs to one client's connection."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(
        self, head: _Head, body: bytes, client_out: asyncio.StreamWriter, limit: int | None
    ) -> bool:
        """Ask the store and pass its answer on, at most `limit` bytes of its body."""
        if self._pair is None:
            self._pair = await asyncio.open_connection(*self._address, limit=HEAD_BYTES)
        store_in, store_out = self._pair
        # The proxy has answered the expectation itself; the header is not part of a signature.
        store_out.write(head.raw(without="expect") + body)
        await store_out.drain()
        answer = await _read_head(store_in)
        client_out.write(answer.raw())
        if head.method == "HEAD" or answer.status in (204, 304):
            await client_out.drain()
        elif not await _pass_body(answer, store_in, client_out, limit):
            return False
        return "close" not in (answer.headers.get("connection"), head.headers.get("connection"))

    async def close(self) -> None:
        """Idempotent."""
        pair, self._pair = self._pair, None
        if pair is not None:
            await _close(pair[1])


async def _read_head(stream: asyncio.StreamReader) -> _Head:
    lines: list[bytes] = []
    headers: dict[str, str] = {}
    while (line := await stream.readline()) != b"\r\n":
        if not line.endswith(b"\n"):
            raise EOFError("connection closed")
        lines.append(line)
        if len(lines) > 1:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    return _Head(tuple(lines), headers)


async def _read_body(stream: asyncio.StreamReader, head: _Head) -> bytes:
    """The body with its framing, as it came."""
    if head.headers.get("transfer-encoding", "").lower() != "chunked":
        return await stream.readexactly(int(head.headers.get("content-length", "0")))
    pieces = []
    size = -1
    while size:
        line = await stream.readline()
        size = int(line.split(b";")[0], 16)
        pieces += [line, await stream.readexactly(size + 2)]
    return b"".join(pieces)


async def _pass_body(
    answer: _Head,
    store_in: asyncio.StreamReader,
    client_out: asyncio.StreamWriter,
    limit: int | None,
) -> bool:
    """Whether the body was passed on whole."""
    if answer.headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_body(store_in, answer)
        client_out.write(body[:limit])
        await client_out.drain()
        return limit is None
    left = int(answer.headers.get("content-length", "0"))
    if limit is not None:
        left = min(left, limit)
    while left:
        piece = await store_in.read(min(left, PIECE_BYTES))
        if not piece:
            raise EOFError("the store closed the connection")
        left -= len(piece)
        client_out.write(piece)
        await client_out.drain()
    return limit is None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _error(status: int, code: str, *, has_body: bool) -> bytes:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + (body if has_body else b"")


@contextmanager
def proxy(target_url: str) -> Iterator[Proxy]:
    """A running proxy in front of the store at target_url."""
    between = Proxy(target_url)
    between.start()
    try:
        yield between
    finally:
        between.stop()
