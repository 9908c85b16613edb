"""An HTTP server that misbehaves by script, on raw sockets: what no real store does on demand.

Replies are used up in order, one per request, whichever connection it comes on; without a reply
left the server answers 404 as S3 would. Every request is recorded whole.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """An answer in order. announced_bytes: Content-Length, where it differs from the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    announced_bytes: int | None = None

    def head(self) -> bytes:
        size = len(self.body) if self.announced_bytes is None else self.announced_bytes
        given = {"Content-Length": str(size), "Date": _http_date(), **self.headers}
        lines = [f"HTTP/1.1 {self.status} Scripted", *(f"{k}: {v}" for k, v in given.items() if v)]
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True)
class HangUp:
    """The request is read, the connection closed without a byte."""


@dataclass(frozen=True)
class Refuse:
    """The answer comes before the body was read."""

    answer: Answer


@dataclass(frozen=True)
class Reset:
    """The head and sent_bytes of the body go out, then the connection is reset."""

    answer: Answer
    sent_bytes: int


@dataclass(frozen=True)
class Stall:
    """As many bytes go out (None: not even the head), the rest when `released` is set."""

    answer: Answer
    sent_bytes: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class SlowReader:
    """Nothing of the body is read until `released` is set, then all that comes, no answer."""

    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    read: bytearray = field(default_factory=bytearray)


Reply: TypeAlias = Answer | HangUp | Refuse | Reset | Stall | SlowReader


@dataclass(frozen=True)
class Request:
    """What a client sent; connection counts connections from 0."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int


def s3_error(status: int, code: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
    return Answer(status, body, {"Content-Type": "application/xml", **(headers or {})})


def part_of(whole: bytes, start: int, length: int) -> Answer:
    """The right answer to a ranged GET."""
    body = whole[start : start + length]
    content_range = f"bytes {start}-{start + len(body) - 1}/{len(whole)}"
    return Answer(206, body, {"Content-Range": content_range, "ETag": '"e"'})


MISSING_KEY = s3_error(404, "NoSuchKey")


class ScriptedServer:
    """Use as `with scripted_server(...) as server`. Threads end with the block."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._replies: deque[Reply] = deque()
        self._lock = threading.Lock()
        self._events: list[threading.Event] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.requests: list[Request] = []
        self._listener = socket.create_server((HOST, 0), backlog=64)
        scheme = "http" if tls is None else "https"
        self.endpoint_url = f"{scheme}://{HOST}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="scripted-accept")
        self._acceptor.start()

    def reply(self, *replies: Reply) -> None:
        """Queue replies to the next requests."""
        with self._lock:
            for reply in replies:
                self._replies.append(reply)
                if isinstance(reply, Stall | SlowReader):
                    self._events.append(reply.released)

    def methods(self) -> list[str]:
        """Methods of all requests so far."""
        return [request.method for request in self.requests]

    def stop(self) -> None:
        """End every connection and thread."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for event in self._events:
            event.set()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            index = len(self._threads)
            thread = threading.Thread(
                target=self._serve, args=(sock, index), name=f"scripted-{index}"
            )
            self._sockets.append(sock)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, index: int) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            if self._tls is not None:
                sock = stack.enter_context(self._tls.wrap_socket(sock, server_side=True))
                self._sockets[index] = sock
            stream = stack.enter_context(sock.makefile("rb"))
            while self._exchange(sock, stream, index):
                pass

    def _exchange(self, sock: socket.socket, stream: object, index: int) -> bool:
        """One request and its reply; whether the connection lives on."""
        readline, read = stream.readline, stream.read  # type: ignore[attr-defined]
        first = readline().decode()
        if not first:
            return False
        method, path, _ = first.split(" ", 2)
        headers: dict[str, str] = {}
        while (line := readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        with self._lock:
            reply = self._replies.popleft() if self._replies else MISSING_KEY
        if isinstance(reply, SlowReader):
            return _read_slowly(sock, reply)
        if isinstance(reply, Refuse):
            self.requests.append(Request(method, path, headers, b"", index))
            sock.sendall(reply.answer.head() + reply.answer.body)
            return False
        if headers.get("expect") == "100-continue":
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            body = _read_chunked(readline, read)
        else:
            body = read(int(headers.get("content-length", "0")))
        self.requests.append(Request(method, path, headers, body, index))
        return _send(sock, reply, has_body=method != "HEAD")


def _read_chunked(readline: Callable[[], bytes], read: Callable[[int], bytes]) -> bytes:
    body = b""
    while (size := int(readline(), 16)) > 0:
        body += read(size)
        readline()
    readline()
    return body


def _send(sock: socket.socket, reply: Reply, *, has_body: bool) -> bool:
    match reply:
        case Answer():
            sock.sendall(reply.head() + (reply.body if has_body else b""))
            return reply.announced_bytes is None
        case Reset(answer, sent_bytes):
            sock.sendall(answer.head() + answer.body[:sent_bytes])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        case Stall(answer, sent_bytes, stalled, released, ended):
            head = b"" if sent_bytes is None else answer.head()
            sent_bytes = sent_bytes or 0
            sock.sendall(head + answer.body[:sent_bytes])
            stalled.set()
            released.wait()
            try:
                sock.sendall((b"" if head else answer.head()) + answer.body[sent_bytes:])
            finally:
                ended.set()
    return False


def _read_slowly(sock: socket.socket, reply: SlowReader) -> bool:
    sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    reply.stalled.set()
    reply.released.wait()
    try:
        while piece := sock.recv(1 << 20):
            reply.read.extend(piece)
    finally:
        reply.ended.set()
    return False


@contextmanager
def scripted_server(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """A running server, plain or with TLS."""
    server = ScriptedServer(tls)
    try:
        yield server
    finally:
        server.stop()


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for HOST: its PEM file (for clients), and the server's context."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "s3kv tests")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(HOST))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = folder / "certificate.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)
    return pem, context


def _http_date() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
