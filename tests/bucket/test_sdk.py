"""What goes over the wire: URLs, signatures, checksums, and which threads may send."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from s3kv.bucket.base import Received
from s3kv.bucket.connect import BucketSettings, connect, parse_uri
from s3kv.bucket.meter import Meter
from s3kv.bucket.s3 import S3Store
from s3kv.bucket.sdk import WrongThread, make_body_client, open_conversation
from s3kv.runtime.loop import LoopThread
from tests.bucket.contract import noise
from tests.bucket.stores import MIB, connected_store, plain_store, settings_for
from tests.faults.http_server import (
    Answer,
    ScriptedServer,
    make_certificate,
    part_of,
    scripted_server,
)


class Seen(Exception):
    """Carries the request that was about to be sent."""


def _stop(request: Any, **_: object) -> None:
    raise Seen(request.url)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "https://bucket.s3.amazonaws.com/"),
        ({"region": "eu-central-1"}, "https://bucket.s3.eu-central-1.amazonaws.com/"),
        (
            {"region": "eu-central-1", "addressing_style": "path"},
            "https://s3.eu-central-1.amazonaws.com/bucket/",
        ),
        ({"endpoint_url": "http://127.0.0.1:9000"}, "http://127.0.0.1:9000/bucket/"),
        (
            {"endpoint_url": "https://minio.example:9000", "addressing_style": "path"},
            "https://minio.example:9000/bucket/",
        ),
        (
            {"endpoint_url": "https://store.example", "addressing_style": "virtual"},
            "https://bucket.store.example/",
        ),
    ],
)
async def test_both_clients_address_the_same_url(changes: dict[str, Any], expected: str) -> None:
    settings = BucketSettings(address=parse_uri("s3://bucket/a b/ü"), **changes)
    name = settings.address.name_of("x+y&z")
    url = expected + "a%20b/%C3%BC/x%2By%26z"
    body_client = make_body_client(settings, None)
    body_client.meta.events.register("before-send.s3", _stop)
    with pytest.raises(Seen) as seen:
        body_client.get_object(Bucket="bucket", Key=name)
    body_client.close()
    assert seen.value.args == (url,)
    async with open_conversation(settings, None) as client:
        client.meta.events.register("before-send.s3", _stop)
        with pytest.raises(Seen) as seen:
            await client.head_object(Bucket="bucket", Key=name)
    assert seen.value.args == (url,)


async def test_region_and_credentials_come_from_the_profile(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile archive]\nregion = eu-north-1\n"
        "aws_access_key_id = PROFILEKEY\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    async with plain_store(server.endpoint_url, "s3://bucket/pre", profile="archive") as store:
        await store.stat("x", timeout_s=5)
        await store.get_into("x", 0, memoryview(bytearray(1)), timeout_s=5)
    for request in server.requests:
        assert "Credential=PROFILEKEY/" in request.headers["authorization"]
        assert "/eu-north-1/s3/" in request.headers["authorization"]


async def test_keys_lie_under_the_prefix_and_nothing_else_is_asked(server: ScriptedServer) -> None:
    async with plain_store(server.endpoint_url, "s3://bucket/team/archive") as store:
        await store.stat("a/b", timeout_s=5)
        await store.get_into("a/b", 0, memoryview(bytearray(1)), timeout_s=5)
    assert [(request.method, request.path) for request in server.requests] == [
        ("HEAD", "/bucket/team/archive/a/b"),
        ("GET", "/bucket/team/archive/a/b"),
    ]


@pytest.fixture
def tls_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    pem, tls = make_certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    with scripted_server(tls) as server:
        yield server


async def test_large_bodies_are_neither_hashed_nor_checksummed_unless_wanted(
    tls_server: ScriptedServer,
) -> None:
    body = noise(5, 3 * MIB + 17)
    tls_server.reply(Answer(200, headers={"ETag": '"e"'}))
    async with plain_store(tls_server.endpoint_url, "s3://bucket/pre") as store:
        assert await store.put("x", memoryview(body), timeout_s=10) == "e"
    (request,) = tls_server.requests
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert not [name for name in request.headers if name.startswith("x-amz-checksum")]
    assert "x-amz-trailer" not in request.headers
    assert request.body == body


async def test_checksums_are_sent_when_wanted(tls_server: ScriptedServer) -> None:
    body = noise(6, 3 * MIB + 17)
    tls_server.reply(*[Answer(200, headers={"ETag": '"e"'})] * 2)
    async with plain_store(
        tls_server.endpoint_url, "s3://bucket/pre", checksum_mode="when_supported"
    ) as store:
        await store.put("x", memoryview(body), timeout_s=10)
        await store.put("small", b"small", timeout_s=10)
    large, small = tls_server.requests
    assert large.headers["x-amz-trailer"] == "x-amz-checksum-crc32"
    assert int(large.headers["x-amz-decoded-content-length"]) == len(body)
    assert _aws_chunks(large.body) == body
    assert "x-amz-checksum-crc32" in small.headers or "x-amz-trailer" in small.headers


def _aws_chunks(body: bytes) -> bytes:
    """The payload of an aws-chunked body."""
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            break
        found += rest[:count]
        body = rest[count + 2 :]
    return found


@pytest.mark.parametrize("size", [10, 100_000, 12 * MIB])
@pytest.mark.parametrize("server_name", ["seaweed", "moto"])
async def test_both_servers_accept_the_sdks_checksums(
    request: pytest.FixtureRequest, server_name: str, fresh_uri: str, size: int
) -> None:
    endpoint_url = request.getfixturevalue(f"{server_name}_endpoint")
    body, buffer = noise(7, size), bytearray(size)
    async with connected_store(endpoint_url, fresh_uri, checksum_mode="when_supported") as store:
        await store.put("x", memoryview(body), timeout_s=20)
        received = await store.get_into("x", 0, memoryview(buffer), timeout_s=20)
    assert isinstance(received, Received)
    assert received.received_bytes == size
    assert buffer == body


async def test_no_request_leaves_a_thread_that_is_not_ours(server: ScriptedServer) -> None:
    meter = Meter()
    store = connect(
        settings_for(server.endpoint_url, "s3://bucket/pre"),
        guard_thread_prefix="s3kv-",
        meter=meter,
    )
    try:
        with pytest.raises(WrongThread, match=threading.current_thread().name):
            await store.stat("x", timeout_s=5)
        with pytest.raises(WrongThread):
            await store.create("x", b"", timeout_s=5)
        assert server.requests == []
        assert meter.snapshot().errors == {"WrongThread": 2}
        # Bodies travel on threads of ours, whoever asks.
        server.reply(part_of(b"abc", 0, 3))
        await store.get_into("x", 0, memoryview(bytearray(3)), timeout_s=5)
        assert len(server.requests) == 1
    finally:
        await store.close()


def test_our_own_loop_thread_may_send(server: ScriptedServer) -> None:
    settings = settings_for(server.endpoint_url, "s3://bucket/pre")

    async def work() -> int:
        store = S3Store(settings, guard_thread_prefix="s3kv-")
        try:
            await store.stat("x", timeout_s=5)
            assert store.guard is not None
            return store.guard.refused_count
        finally:
            await store.close()

    loop = LoopThread()
    try:
        assert loop.submit(work()).result(timeout=10) == 0
    finally:
        loop.close(5)
    assert len(server.requests) == 1


def test_awscrt_is_kept_out_without_a_trace_in_the_environment(tmp_path: Path) -> None:
    fake = tmp_path / "awscrt"
    fake.mkdir()
    (fake / "__init__.py").write_text("__version__ = '0.28.4'\n")
    (fake / "auth.py").write_text("")
    script = (
        "import os, s3kv.bucket.sdk, botocore.compat; "
        "print(botocore.compat.HAS_CRT, 'BOTO_DISABLE_CRT' in os.environ)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"},
    )
    assert ran.stdout.split() == ["False", "False"]


def test_settings_and_connect_load_no_sdk() -> None:
    script = (
        "import sys, s3kv.bucket.connect; "
        "print([name for name in ('botocore', 'aiohttp', 'urllib3') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
