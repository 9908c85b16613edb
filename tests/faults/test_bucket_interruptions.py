"""The S3 client against a server that stalls, resets and comes back late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from s3kv.bucket.base import EXISTS, MISSING
from s3kv.bucket.connect import connect
from s3kv.bucket.retry import Retrying
from s3kv.errors import Closed, Throttled, Transient
from tests.bucket.stores import MIB, settings_for
from tests.faults.http_server import (
    Answer,
    HangUp,
    Refuse,
    Reset,
    ScriptedServer,
    SlowReader,
    Stall,
    make_certificate,
    part_of,
    s3_error,
    scripted_server,
)
from tests.faults.scripted_client import QUICK, URI, WHOLE, opened


@pytest.fixture(params=["http", "https"])
def either_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedServer]:
    tls = None
    if request.param == "https":
        pem, tls = make_certificate(tmp_path)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    with scripted_server(tls) as server:
        yield server


async def until(event: threading.Event) -> None:
    """Wait for another thread's event without stopping this loop."""
    while not event.is_set():  # noqa: ASYNC110 - set by a thread that knows no loop
        await asyncio.sleep(0.005)


async def given_up(task: asyncio.Future[Any], ending: str, pause_s: float) -> None:
    """Wait for the task's own time limit, or cancel it after a pause."""
    if ending == "cancel":
        await asyncio.sleep(pause_s)
        task.cancel()
    with pytest.raises(Transient if ending == "timeout" else asyncio.CancelledError):
        await task


async def test_a_body_reset_on_its_way_is_transient(either_server: ScriptedServer) -> None:
    either_server.reply(Reset(part_of(WHOLE, 0, 1 << 20), 300_000))
    buffer = bytearray(1 << 20)
    async with opened(either_server) as store:
        with pytest.raises(Transient):
            await store.get_into("x", 0, memoryview(buffer), timeout_s=5)


async def test_a_body_that_ends_early_is_transient(either_server: ScriptedServer) -> None:
    head = part_of(WHOLE, 0, 1 << 20)
    short = Answer(206, WHOLE[:1000], head.headers, announced_bytes=1 << 20)
    either_server.reply(short)
    buffer = bytearray(1 << 20)
    async with opened(either_server) as store:
        with pytest.raises(Transient, match="1000 of 1048576"):
            await store.get_into("x", 0, memoryview(buffer), timeout_s=5)
        either_server.reply(Answer(200, b"abc", announced_bytes=1000))
        with pytest.raises(Transient):
            await store.get("x", max_bytes=1000, timeout_s=5)


@pytest.mark.parametrize("sent_bytes", [None, 0, 300_000], ids=["silence", "head", "part"])
@pytest.mark.parametrize("ending", ["timeout", "cancel"])
async def test_a_late_answer_never_reaches_a_buffer_that_was_given_back(
    either_server: ScriptedServer, sent_bytes: int | None, ending: str
) -> None:
    stall = Stall(part_of(WHOLE, 0, 1 << 20), sent_bytes)
    either_server.reply(stall, part_of(WHOLE, 0, 1 << 20))
    buffer = bytearray(1 << 20)
    async with opened(either_server, body_threads=1, read_timeout_s=600) as store:
        timeout_s = 1.0 if ending == "timeout" else 30.0
        task = asyncio.ensure_future(
            store.get_into("x", 0, memoryview(buffer), timeout_s=timeout_s)
        )
        await until(stall.stalled)
        await given_up(task, ending, 0.05)
        buffer[:] = b"." * len(buffer)
        stall.released.set()
        await until(stall.ended)
        # The only transfer thread is free again, and its next transfer is right.
        other = bytearray(1 << 20)
        await store.get_into("x", 0, memoryview(other), timeout_s=5)
    assert buffer == b"." * len(buffer)
    assert other == WHOLE


async def test_cancelling_twice_does_not_give_a_buffer_back_early(server: ScriptedServer) -> None:
    stall = Stall(part_of(WHOLE, 0, 1 << 20), 300_000)
    server.reply(stall)
    buffer = bytearray(1 << 20)
    async with opened(server, body_threads=1, read_timeout_s=600) as store:
        task = asyncio.ensure_future(store.get_into("x", 0, memoryview(buffer), timeout_s=30))
        await until(stall.stalled)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        buffer[:] = b"." * len(buffer)
        stall.released.set()
        await until(stall.ended)
    assert buffer == b"." * len(buffer)


@pytest.mark.parametrize("ending", ["timeout", "cancel"])
async def test_memory_given_back_after_a_put_is_not_sent_any_more(
    server: ScriptedServer, ending: str
) -> None:
    reader = SlowReader()
    server.reply(reader)
    body = bytearray(64 * MIB)  # more than the sockets' buffers take
    async with opened(server, multipart_bytes=128 * MIB) as store:
        timeout_s = 1.0 if ending == "timeout" else 30.0
        task = asyncio.ensure_future(store.put("x", memoryview(body), timeout_s=timeout_s))
        await until(reader.stalled)
        await given_up(task, ending, 0.2)
        body[:] = b"\xff" * len(body)
        reader.released.set()
        await until(reader.ended)
    assert len(reader.read) > 0
    assert b"\xff" not in reader.read


async def test_a_refusal_before_the_body_is_understood(server: ScriptedServer) -> None:
    server.reply(Refuse(s3_error(503, "SlowDown")))
    async with opened(server) as store:
        with pytest.raises(Throttled):
            await store.put("x", bytes(4 * MIB), timeout_s=5)


@pytest.fixture
def begun_upload() -> Answer:
    return Answer(
        200,
        b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
    )


async def test_a_failed_part_aborts_the_upload(
    server: ScriptedServer, begun_upload: Answer
) -> None:
    part = Answer(200, headers={"ETag": '"p"'})
    server.reply(begun_upload, part, s3_error(500, "InternalError"), Answer(204))
    async with opened(server, body_threads=1) as store:
        with pytest.raises(Transient):
            await store.put("x", bytes(10 * MIB), timeout_s=10)
    assert server.requests[-1].method == "DELETE"
    assert "uploadId=u1" in server.requests[-1].path


@pytest.mark.parametrize("ending", ["timeout", "cancel"])
async def test_an_interrupted_upload_is_aborted(
    server: ScriptedServer, begun_upload: Answer, ending: str
) -> None:
    stall = Stall(Answer(200))
    server.reply(begun_upload, stall, Answer(204))
    async with opened(server, body_threads=1) as store:
        timeout_s = 1.0 if ending == "timeout" else 30.0
        task = asyncio.ensure_future(store.put("x", bytes(12 * MIB), timeout_s=timeout_s))
        await until(stall.stalled)
        if ending == "cancel":
            task.cancel()
        with pytest.raises(Transient if ending == "timeout" else asyncio.CancelledError):
            await task
    assert server.methods() == ["POST", "PUT", "DELETE"]
    assert "uploadId=u1" in server.requests[-1].path


async def test_an_upload_cancelled_while_it_begins_is_aborted(
    server: ScriptedServer, begun_upload: Answer
) -> None:
    stall = Stall(begun_upload)
    server.reply(stall, Answer(204))
    async with opened(server) as store:
        task = asyncio.ensure_future(store.put("x", bytes(12 * MIB), timeout_s=30))
        await until(stall.stalled)
        task.cancel()
        await asyncio.sleep(0.05)
        stall.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert server.methods() == ["POST", "DELETE"]


async def test_closing_ends_transfers_and_threads(server: ScriptedServer) -> None:
    stall = Stall(part_of(WHOLE, 0, 1 << 20), 300_000)
    server.reply(stall)
    buffer = bytearray(1 << 20)
    async with opened(server, body_threads=1, read_timeout_s=600) as store:
        flying = asyncio.ensure_future(store.get_into("x", 0, memoryview(buffer), timeout_s=30))
        await until(stall.stalled)
        waiting = asyncio.ensure_future(store.get_into("y", 0, memoryview(buffer), timeout_s=30))
        await asyncio.sleep(0)
        await store.close()
        for task in (flying, waiting):
            with pytest.raises(Closed):
                await task
    assert not [name for name in _thread_names() if name.startswith("s3kv-body")]


def _thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


async def test_connections_are_used_again(server: ScriptedServer) -> None:
    server.reply(*(part_of(WHOLE, 0, 1000) for _ in range(5)))
    async with opened(server, body_threads=1) as store:
        for _ in range(5):
            await store.get_into("x", 0, memoryview(bytearray(1000)), timeout_s=5)
    assert {request.connection for request in server.requests} == {0}


async def test_a_create_whose_reply_was_lost_answers_exists_when_repeated(
    server: ScriptedServer,
) -> None:
    server.reply(HangUp(), s3_error(412, "PreconditionFailed"))
    async with opened(server) as store:
        assert await Retrying(store, QUICK).create("x", b"mine", timeout_s=5) is EXISTS
    assert [request.headers["if-none-match"] for request in server.requests] == ["*", "*"]


async def test_a_connected_store_repeats_what_may_pass(server: ScriptedServer) -> None:
    server.reply(
        HangUp(),
        s3_error(503, "SlowDown"),
        Reset(part_of(WHOLE, 0, 1 << 20), 1000),
        part_of(WHOLE, 0, 1 << 20),
    )
    buffer = bytearray(1 << 20)
    store = connect(settings_for(server.endpoint_url, URI, retry=QUICK))
    try:
        await store.get_into("x", 0, memoryview(buffer), timeout_s=10)
        assert buffer == WHOLE
        assert await store.stat("y", timeout_s=5) is MISSING
    finally:
        await store.close()


async def test_a_connected_store_stops_repeating_when_time_is_up(server: ScriptedServer) -> None:
    server.reply(*(Stall(Answer(200)) for _ in range(3)))
    store = connect(settings_for(server.endpoint_url, URI, retry=QUICK))
    try:
        with pytest.raises(Transient):
            await store.get_into("x", 0, memoryview(bytearray(10)), timeout_s=0.3)
    finally:
        await store.close()
    assert len(server.requests) == 1


async def test_a_listing_goes_on_at_the_page_that_failed(server: ScriptedServer) -> None:
    def page(key: str, rest: str) -> Answer:
        found = (
            f"<Contents><Key>pre/{key}</Key><Size>1</Size><ETag>e</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
        return Answer(200, f"<ListBucketResult>{found}{rest}</ListBucketResult>".encode())

    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t1</NextContinuationToken>"
    server.reply(
        page("a", more),
        s3_error(500, "InternalError"),
        HangUp(),
        page("b", "<IsTruncated>false</IsTruncated>"),
    )
    async with opened(server) as store:
        pages = Retrying(store, QUICK).list("", timeout_s=5)
        keys = [info.key async for found in pages for info in found]
    assert keys == ["a", "b"]
    assert ["continuation-token=t1" in request.path for request in server.requests] == [
        False,
        True,
        True,
        True,
    ]
