"""HTTP/1.1 as bytes on a connection: just enough for a proxy that passes a store through."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

PIECE_BYTES = 1 << 16
HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Head:
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


class Upstream:
    """The connection to the store that belongs to one client's connection."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(
        self, head: Head, body: bytes, client_out: asyncio.StreamWriter, limit: int | None
    ) -> bool:
        """Ask the store and pass its answer on, at most `limit` bytes of its body."""
        if self._pair is None:
            self._pair = await asyncio.open_connection(*self._address, limit=HEAD_BYTES)
        store_in, store_out = self._pair
        # The proxy has answered the expectation itself; the header is not part of a signature.
        store_out.write(head.raw(without="expect") + body)
        await store_out.drain()
        answer = await read_head(store_in)
        client_out.write(answer.raw())
        if head.method == "HEAD" or answer.status in (204, 304):
            await client_out.drain()
        elif not await pass_body(answer, store_in, client_out, limit):
            return False
        return "close" not in (answer.headers.get("connection"), head.headers.get("connection"))

    async def close(self) -> None:
        """Idempotent."""
        pair, self._pair = self._pair, None
        if pair is not None:
            await close_writer(pair[1])


async def read_head(stream: asyncio.StreamReader) -> Head:
    lines: list[bytes] = []
    headers: dict[str, str] = {}
    while (line := await stream.readline()) != b"\r\n":
        if not line.endswith(b"\n"):
            raise EOFError("connection closed")
        lines.append(line)
        if len(lines) > 1:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    return Head(tuple(lines), headers)


async def read_body(stream: asyncio.StreamReader, head: Head) -> bytes:
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


async def pass_body(
    answer: Head,
    store_in: asyncio.StreamReader,
    client_out: asyncio.StreamWriter,
    limit: int | None,
) -> bool:
    """Whether the body was passed on whole."""
    if answer.headers.get("transfer-encoding", "").lower() == "chunked":
        body = await read_body(store_in, answer)
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


async def close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def error_answer(status: int, code: str, *, has_body: bool) -> bytes:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + (body if has_body else b"")
