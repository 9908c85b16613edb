"""Bodies between a caller's memory and the bucket, without a copy in Python.

botocore (what boto3 is made of) signs and speaks HTTP on the threads of `transfer_threads`. A GET
is received by the kernel's `recv_into` straight into the caller's buffer, a PUT is sent from slices
of the caller's memory. What the response's headers promise is compared with what was asked and
what arrived.
"""

from __future__ import annotations

import io
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.exceptions import ClientError

from s3kv.bucket.base import MISSING, Missing, Received
from s3kv.bucket.errors_map import error_header, error_status, is_missing
from s3kv.bucket.transfer_threads import Flight, TransferThreads, current_flight
from s3kv.errors import Corrupt, Transient

SEND_BYTES = 1 << 20
"""Piece of a body that is given to the socket at once: one trip through the GIL each."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class MemoryBody(io.RawIOBase):
    """A file-like view of memory that hands out slices, never copies.

    `read` may return more than it was asked for: http.client asks for 16 KiB at a time, and sends
    whatever it gets.
    """

    def __init__(self, memory: memoryview, touch: Callable[[], None]) -> None:
        """memory: uint8, contiguous; touch: called before memory is read."""
        super().__init__()
        self._memory = memory
        self._size = len(memory)
        self._touch = touch
        self._offset = 0

    def read(self, size: int | None = -1) -> memoryview:
        """The next slice, at least SEND_BYTES long unless the body ends; empty at the end."""
        self._touch()
        wanted = self._size if size is None or size < 0 else max(size, SEND_BYTES)
        piece = self._memory[self._offset : self._offset + wanted]
        self._offset += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As for any file."""
        base = (0, self._offset, self._size)[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        """As for any file."""
        return self._offset

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True: the SDK rewinds a body to hash it."""
        return True

    def __len__(self) -> int:
        """Bytes of the whole body."""
        return self._size


class _Tracked:
    """Mixin of a connection that tells the current flight which socket works for it."""

    sock: socket.socket | None
    _flight: Flight[object] | None = None

    def _board(self) -> None:
        flight = current_flight()
        if self._flight is not None and self._flight is not flight:
            self._flight.drop_socket()
        self._flight = flight
        if flight is not None and isinstance(self.sock, socket.socket):
            flight.use_socket(self.sock)

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self._board()

    def request(self, *args: Any, **kwargs: Any) -> None:
        self._board()
        super().request(*args, **kwargs)  # type: ignore[misc]


class _TrackedHTTP(_Tracked, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _TrackedHTTPS(_Tracked, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _HTTPPool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _TrackedHTTP


class _HTTPSPool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _TrackedHTTPS


def _track_connections(client: Any) -> None:
    # botocore offers no public way to its transport; one dictionary serves all pools and proxies.
    session = client._endpoint.http_session
    session._pool_classes_by_scheme.update(http=_HTTPPool, https=_HTTPSPool)


@dataclass(frozen=True, slots=True)
class _Announced:
    """What the headers of an answer promise: body_bytes follow, of an object of total_bytes."""

    body_bytes: int
    total_bytes: int


def _announced(reply: Any, start: int, wanted_bytes: int) -> _Announced:
    """Compare status and headers with the question. Raises `Corrupt`."""
    length = reply.get("ContentLength")
    if reply["ResponseMetadata"]["HTTPStatusCode"] == 200:
        # The store ignored the range: the whole object follows.
        if start != 0:
            raise Corrupt(f"the store answered a range from {start} with the whole object")
        if length is None:
            raise Corrupt("the store announced no length")
        return _Announced(min(length, wanted_bytes), length)
    found = _CONTENT_RANGE.fullmatch(reply.get("ContentRange") or "")
    if found is None:
        raise Corrupt(f"partial answer with Content-Range {reply.get('ContentRange')!r}")
    first, last, total_bytes = (int(group) for group in found.groups())
    body_bytes = last - first + 1
    expected_bytes = min(wanted_bytes, total_bytes - start)
    if first != start or body_bytes != expected_bytes or length not in (None, body_bytes):
        raise Corrupt(
            f"asked for {wanted_bytes} bytes from {start}, the store announced "
            f"{found[0]} with length {length}"
        )
    return _Announced(body_bytes, total_bytes)


def _receive(response: Any, target: memoryview) -> None:
    """Fill target from an http.client response. Raises `Transient` if the body ends early."""
    filled = 0
    while filled < len(target):
        with target[filled:] as rest:
            count = response.readinto(rest)
        if not count:
            raise Transient(f"the body ended after {filled} of {len(target)} bytes")
        filled += count


def _past_the_end(error: ClientError, start: int) -> Received:
    """A 416 as a value. Raises `Corrupt` if the answer does not tell the object's size."""
    size = (error_header(error, "content-range") or "").removeprefix("bytes */")
    size = size or str(error.response.get("Error", {}).get("ActualObjectSize", ""))
    if not size.isdigit():
        if start == 0:
            return Received(0, 0, "")  # only an empty object has no byte 0
        raise Corrupt(f"range from {start} refused without the object's size")
    if int(size) > start:
        raise Corrupt(f"range from {start} refused for an object of {size} bytes")
    return Received(0, int(size), "")


class Bodies:
    """Transfers of one bucket. Coroutines belong to one event loop."""

    def __init__(
        self, bucket: str, make_client: Callable[[], Any], *, thread_count: int, name_prefix: str
    ) -> None:
        """make_client: builds the botocore client, called once, on a transfer thread."""
        self._bucket = bucket
        self._make_client = make_client
        self._client: Any = None
        # The transfer threads that start at the same time.
        self._client_lock = threading.Lock()
        self._threads = TransferThreads(thread_count, name_prefix)

    def _client_of_thread(self) -> Any:
        with self._client_lock:
            if self._client is None:
                self._client = self._make_client()
                _track_connections(self._client)
            return self._client

    async def fetch(
        self, name: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """GET of [start, start + len(buffer)), len(buffer) > 0, into a writable uint8 buffer.

        Raises `Corrupt`, `Transient` (early end), `TimeoutError`, and what the SDK raises.
        """

        def work(flight: Flight[Received | Missing]) -> Received | Missing:
            wanted = f"bytes={start}-{start + len(buffer) - 1}"
            try:
                reply = self._client_of_thread().get_object(
                    Bucket=self._bucket, Key=name, Range=wanted
                )
            except ClientError as error:
                if is_missing(error):
                    return MISSING
                if error_status(error) == 416:
                    return _past_the_end(error, start)
                raise
            return self._receive_into(flight, reply, start, buffer)

        return await self._threads.load(work, timeout_s)

    def _receive_into(
        self, flight: Flight[Received | Missing], reply: Any, start: int, buffer: memoryview
    ) -> Received:
        # The wrappers around http.client's response would make a bytes object of every piece.
        stream = reply["Body"]._raw_stream
        try:
            announced = _announced(reply, start, len(buffer))
            flight.touch()
            with buffer[: announced.body_bytes] as target:
                _receive(stream._fp, target)
            if stream._fp.isclosed():
                stream.release_conn()
        finally:
            stream.close()
        etag = str(reply.get("ETag", "")).strip('"')
        return Received(announced.body_bytes, announced.total_bytes, etag)

    async def send(self, name: str, body: memoryview, *, timeout_s: float) -> str:
        """PUT of one object. Returns the ETag. Raises `TimeoutError`, and what the SDK raises."""

        def work(flight: Flight[str]) -> str:
            reply = self._client_of_thread().put_object(
                Bucket=self._bucket, Key=name, Body=MemoryBody(body, flight.touch)
            )
            return str(reply["ETag"]).strip('"')

        return await self._threads.save(work, timeout_s)

    async def send_part(
        self, name: str, upload_id: str, part_number: int, body: memoryview, *, timeout_s: float
    ) -> str:
        """PUT of one part, part_number from 1 on. As `send`, but the ETag keeps its quotes."""

        def work(flight: Flight[str]) -> str:
            reply = self._client_of_thread().upload_part(
                Bucket=self._bucket,
                Key=name,
                UploadId=upload_id,
                PartNumber=part_number,
                Body=MemoryBody(body, flight.touch),
            )
            return str(reply["ETag"])

        return await self._threads.save(work, timeout_s)

    async def close(self) -> None:
        """Abandon transfers, end the threads, close the connections. Idempotent."""
        await self._threads.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()
