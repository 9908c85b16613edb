"""The S3 client against a server that answers what no store should."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3kv.bucket.base import ObjectStore, Received
from s3kv.bucket.retry import Retrying
from s3kv.errors import Corrupt, Denied, S3KVError, Throttled, Transient
from tests.bucket.stores import plain_store
from tests.faults.http_server import (
    Answer,
    HangUp,
    Reply,
    ScriptedServer,
    Stall,
    make_certificate,
    part_of,
    s3_error,
    scripted_server,
)
from tests.faults.scripted_client import BODY, QUICK, URI, WHOLE, opened


async def call(store: ObjectStore, operation: str, timeout_s: float = 5.0) -> object:
    buffer = memoryview(bytearray(1000))
    match operation:
        case "stat":
            return await store.stat("x", timeout_s=timeout_s)
        case "get":
            return await store.get("x", max_bytes=1 << 20, timeout_s=timeout_s)
        case "get_into":
            return await store.get_into("x", 0, buffer, timeout_s=timeout_s)
        case "put":
            return await store.put("x", b"small", timeout_s=timeout_s)
        case "put large":
            return await store.put("x", BODY, timeout_s=timeout_s)
        case "create":
            return await store.create("x", b"small", timeout_s=timeout_s)
        case "list":
            return await anext(store.list("", timeout_s=timeout_s))
        case "list_prefixes":
            return await store.list_prefixes("", timeout_s=timeout_s)
        case "delete":
            await store.delete(["x"], timeout_s=timeout_s)
    return None


OPERATIONS = [
    "stat",
    "get",
    "get_into",
    "put",
    "put large",
    "create",
    "list",
    "list_prefixes",
    "delete",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (s3_error(500, "InternalError"), Transient),
        (s3_error(503, "SlowDown"), Throttled),
        (s3_error(429, "TooManyRequests"), Throttled),
        (s3_error(403, "AccessDenied"), Denied),
        (s3_error(401, "Unauthorized"), Denied),
        (s3_error(400, "ExpiredToken"), Denied),
        (s3_error(501, "NotImplemented"), Denied),
        (s3_error(409, "ConditionalRequestConflict"), Transient),
        (HangUp(), Transient),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(getattr(value, "status", "hang-up")),
)
async def test_every_refusal_says_what_to_do(
    server: ScriptedServer, operation: str, reply: Reply, expected: type[S3KVError]
) -> None:
    server.reply(reply)
    async with opened(server) as store:
        with pytest.raises(expected) as raised:
            await call(store, operation)
    assert type(raised.value) is expected
    assert len(server.requests) == 1, "the client itself repeats nothing"


@pytest.mark.parametrize(
    ("code", "expected"),
    [("InternalError", Transient), ("SlowDown", Throttled), ("AccessDenied", Denied)],
)
async def test_a_key_that_could_not_be_deleted_is_not_passed_over(
    server: ScriptedServer, code: str, expected: type[S3KVError]
) -> None:
    error = "<Error><Key>pre/{}</Key><Code>{}</Code><Message>m</Message></Error>"
    refused = error.format("gone", "NoSuchKey") + error.format("b", code)
    server.reply(Answer(200, f"<DeleteResult>{refused}</DeleteResult>".encode()))
    async with opened(server) as store:
        with pytest.raises(expected) as raised:
            await store.delete(["a", "gone", "b"], timeout_s=5)
    assert type(raised.value) is expected


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_silence_ends_with_the_callers_time(server: ScriptedServer, operation: str) -> None:
    server.reply(Stall(Answer(200)))
    async with opened(server) as store:
        with pytest.raises(Transient):
            await call(store, operation, timeout_s=0.2)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_server_at_all_is_transient(operation: str) -> None:
    with scripted_server() as server:
        endpoint_url = server.endpoint_url
    async with plain_store(endpoint_url, URI) as store:
        with pytest.raises(Transient):
            await call(store, operation)


@pytest.mark.parametrize("operation", ["get", "get_into", "put", "put large", "list"])
async def test_a_bucket_that_does_not_exist_is_named_and_never_created(
    server: ScriptedServer, operation: str
) -> None:
    server.reply(s3_error(404, "NoSuchBucket"))
    async with opened(server) as store:
        with pytest.raises(Denied, match=r"s3://bucket/pre.*never creates"):
            await call(store, operation)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("operation", ["get", "get_into", "put", "put large", "stat"])
async def test_a_wrong_region_is_named_and_not_followed(
    server: ScriptedServer, operation: str, status: int
) -> None:
    where = {"x-amz-bucket-region": "eu-central-1", "Location": f"{server.endpoint_url}/other"}
    server.reply(s3_error(status, "PermanentRedirect", where))
    async with opened(server, region="us-west-2") as store:
        with pytest.raises(Denied, match=r"us-west-2.*set region='eu-central-1'"):
            await call(store, operation)
    assert len(server.requests) == 1


async def test_without_credentials_the_answer_is_denied_and_names_the_chain(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with opened(server) as store:
        for operation in ("stat", "get_into", "put large"):
            with pytest.raises(Denied, match="AWS chain"):
                await call(store, operation)
    assert server.requests == []


async def test_an_unknown_profile_is_denied(server: ScriptedServer) -> None:
    async with opened(server, profile="nobody") as store:
        for operation in ("stat", "get_into"):
            with pytest.raises(Denied, match="nobody"):
                await call(store, operation)


async def test_an_unknown_certificate_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tls = make_certificate(tmp_path)
    with scripted_server(tls) as server:
        async with opened(server) as store:
            for operation in ("stat", "get_into"):
                with pytest.raises(Denied, match="AWS_CA_BUNDLE"):
                    await call(store, operation)


async def test_bytes_beyond_the_announced_length_reach_nobody(server: ScriptedServer) -> None:
    head = part_of(WHOLE, 0, 1000)
    server.reply(Answer(206, WHOLE[:3000], head.headers, announced_bytes=1000))
    server.reply(part_of(WHOLE, 5000, 1000))
    buffer = bytearray(4000)
    async with opened(server, body_threads=1) as store:
        retrying = Retrying(store, QUICK)
        await retrying.get_into("x", 0, memoryview(buffer)[:1000], timeout_s=5)
        await retrying.get_into("x", 5000, memoryview(buffer)[2000:3000], timeout_s=5)
    assert buffer == WHOLE[:1000] + bytes(1000) + WHOLE[5000:6000] + bytes(1000)


@pytest.mark.parametrize(
    "answer",
    [
        part_of(WHOLE, 100, 1000),
        Answer(206, WHOLE[:1000], {"Content-Range": "bytes 0-1999/1048576"}),
        Answer(206, WHOLE[:500], {"Content-Range": "bytes 0-499/1048576"}),
        Answer(206, WHOLE[:2000], {"Content-Range": "bytes 0-1999/1048576"}),
        Answer(206, WHOLE[:1000], {"Content-Range": "bytes 0-999/*"}),
        Answer(206, WHOLE[:1000], {}),
    ],
    ids=["other start", "wrong length", "too short", "too long", "no total", "no range"],
)
async def test_an_answer_to_another_question_is_corrupt_and_not_delivered(
    server: ScriptedServer, answer: Answer
) -> None:
    server.reply(answer)
    buffer = bytearray(1000)
    async with opened(server) as store:
        with pytest.raises(Corrupt):
            await store.get_into("x", 0, memoryview(buffer), timeout_s=5)
    assert buffer == bytes(1000)


async def test_a_server_that_ignores_ranges_is_usable_from_the_start_of_an_object_only(
    server: ScriptedServer,
) -> None:
    server.reply(Answer(200, WHOLE), Answer(200, b"tiny"), Answer(200, WHOLE))
    buffer = bytearray(1000)
    async with opened(server, body_threads=1) as store:
        received = await store.get_into("x", 0, memoryview(buffer), timeout_s=5)
        assert received == Received(1000, len(WHOLE), "")
        assert buffer == WHOLE[:1000]
        received = await store.get_into("x", 0, memoryview(buffer), timeout_s=5)
        assert received == Received(4, 4, "")
        with pytest.raises(Corrupt):
            await store.get_into("x", 10, memoryview(buffer), timeout_s=5)


@pytest.mark.parametrize(
    ("start", "answer", "expected"),
    [
        (0, s3_error(416, "InvalidRange"), Received(0, 0, "")),
        (0, s3_error(416, "InvalidRange", {"Content-Range": "bytes */0"}), Received(0, 0, "")),
        (9, s3_error(416, "InvalidRange", {"Content-Range": "bytes */7"}), Received(0, 7, "")),
    ],
)
async def test_a_range_past_the_end_tells_the_size(
    server: ScriptedServer, start: int, answer: Answer, expected: Received
) -> None:
    server.reply(answer)
    async with opened(server) as store:
        buffer = memoryview(bytearray(10))
        assert await store.get_into("x", start, buffer, timeout_s=5) == expected


@pytest.mark.parametrize("header", ["bytes */70", ""])
async def test_a_range_refused_without_reason_is_corrupt(
    server: ScriptedServer, header: str
) -> None:
    server.reply(s3_error(416, "InvalidRange", {"Content-Range": header}))
    async with opened(server) as store:
        with pytest.raises(Corrupt):
            await store.get_into("x", 9, memoryview(bytearray(10)), timeout_s=5)
