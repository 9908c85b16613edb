from __future__ import annotations

import asyncio
import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.bodies import SEND_BYTES, Bodies, MemoryBody
from s3kv.bucket.settings import BucketSettings, part_ranges
from s3kv.bucket.transfer_threads import Abandoned
from tests.bucket.contract import noise


def body_of(memory: bytearray) -> MemoryBody:
    return MemoryBody(memoryview(memory), lambda: None)


def test_a_body_hands_out_the_callers_own_memory() -> None:
    memory = bytearray(SEND_BYTES)
    piece = body_of(memory).read(16_384)
    assert len(piece) == SEND_BYTES, "one trip to the socket for a whole piece"
    memory[5] = 77
    assert piece[5] == 77, "no copy was made"


def test_memory_that_was_given_back_is_not_read_any_more() -> None:
    def touch() -> None:
        raise Abandoned

    body = MemoryBody(memoryview(b"abc"), touch)
    assert len(body) == 3
    with pytest.raises(Abandoned):
        body.read()


class LateClient:
    """A botocore client whose answer, body and all, is there after the caller has gone."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answered = threading.Event()
        session = SimpleNamespace(_pool_classes_by_scheme={})
        self._endpoint = SimpleNamespace(http_session=session)

    def get_object(self, **_: object) -> dict[str, Any]:
        self.asked.set()
        self.answered.wait(10)
        stream = SimpleNamespace(_fp=io.BytesIO(b"late"), close=lambda: None)
        return {
            "ResponseMetadata": {"HTTPStatusCode": 200},
            "ContentLength": 4,
            "Body": SimpleNamespace(_raw_stream=stream),
        }

    def close(self) -> None:
        """Nothing to close."""


async def test_a_body_that_is_there_after_its_caller_has_gone_is_not_delivered() -> None:
    client = LateClient()
    bodies = Bodies("bucket", lambda: client, thread_count=1, name_prefix="test-late")
    buffer = bytearray(b"....")
    task = asyncio.ensure_future(bodies.fetch("x", 0, memoryview(buffer), timeout_s=30))
    while not client.asked.is_set():  # noqa: ASYNC110 - set by a thread that knows no loop
        await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    client.answered.set()
    await bodies.close()  # waits for the thread
    assert buffer == b"...."


@given(
    size=st.integers(0, 3 * SEND_BYTES), asked=st.integers(1, 2 * SEND_BYTES), again=st.booleans()
)
def test_pieces_add_up_to_the_body_as_often_as_it_is_rewound(
    size: int, asked: int, again: bool
) -> None:
    memory = bytearray(noise(1, 1024) * (size // 1024 + 1))[:size]
    body = body_of(memory)
    for _ in range(1 + again):
        body.seek(0)
        pieces = []
        while piece := body.read(asked):
            pieces.append(piece)
        assert b"".join(pieces) == memory
        assert body.tell() == size
    assert body.seek(0, io.SEEK_END) == size
    assert body.seek(-size, io.SEEK_CUR) == 0
    assert bytes(body.read()) == memory


@given(body_bytes=st.integers(1, 10_000), part_bytes=st.integers(1, 5_000))
def test_parts_cover_the_body_in_order_and_only_the_last_is_short(
    body_bytes: int, part_bytes: int
) -> None:
    ranges = part_ranges(body_bytes, part_bytes)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == body_bytes
    assert {end - start for start, end in ranges[:-1]} <= {part_bytes}
    assert 0 < ranges[-1][1] - ranges[-1][0] <= part_bytes


@pytest.mark.parametrize(
    "change", [{"body_threads": 0}, {"part_bytes": 0}, {"part_bytes": 1 << 40}]
)
def test_settings_that_cannot_work_are_refused(change: dict[str, int]) -> None:
    from s3kv.bucket.prefix import parse_uri

    with pytest.raises(ValueError, match=next(iter(change))):
        BucketSettings(address=parse_uri("s3://bucket"), **change)  # type: ignore[arg-type]
