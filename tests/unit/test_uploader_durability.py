"""Saves: announced when durable (R2), never skipped on a bad hint (R1)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.faults import Fail, Hold, LoseReply
from s3kv.core.shard import verify_blocks, verify_header
from s3kv.errors import Closed, Denied, S3KVError, Throttled, Transient
from s3kv.runtime.uploader import SaveFate
from tests.fakes.chunks import GEOMETRY, identity_of, key_of
from tests.fakes.save_bench import BOUND_S, TAIL_BLOCKS, Bench, open_bench, pattern


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


# ------------------------------------------------------------------ the good case
@pytest.mark.parametrize("block_count", [4, TAIL_BLOCKS])
async def test_a_saved_chunk_is_a_valid_shard_and_is_announced(
    bench: Bench, block_count: int
) -> None:
    assert await bench.save(0, block_count=block_count) is SaveFate.UPLOADED
    identity = identity_of(0, block_count)
    body = memoryview(bench.memory.objects[key_of(identity)])
    assert len(body) == GEOMETRY.shard_bytes(block_count)
    header = verify_header(body, GEOMETRY, identity)
    data = body[GEOMETRY.header_bytes :]
    assert data == pattern(0, block_count)
    verify_blocks(header, GEOMETRY, 0, 0, data)
    assert bench.index.log == [("live", identity.chunk_hash, block_count)]


async def test_two_uploads_of_one_chunk_are_different_objects(bench: Bench) -> None:
    """Their ETags must differ, so that a sweeper never deletes the newer one."""
    await bench.save(0)
    first = bench.memory.objects[key_of(identity_of(0))]
    bench.outcomes.clear()
    await bench.save(0, rewrite=True)
    assert bench.memory.objects[key_of(identity_of(0))] != first


async def test_the_slot_is_free_before_the_index_is_written(bench: Bench) -> None:
    await bench.save(0)
    assert bench.returned_before == ["announcement"]


# ------------------------------------------------------------------ R2
async def test_nothing_is_announced_before_its_shard_is_durable(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put")
    bench.submit(0)
    await hold.entered.wait()
    await bench.clock.settle()
    assert bench.index.was_durable == []
    hold.released.set()
    await bench.ended()
    assert bench.index.was_durable == [True]


@pytest.mark.parametrize("error", [Transient("down"), Throttled("slow"), Denied("no"), Closed("x")])
async def test_a_failed_upload_is_not_announced(bench: Bench, error: S3KVError) -> None:
    bench.store.inject(Fail(error), "put")
    assert await bench.save(0) is SaveFate.FAILED
    assert bench.index.log == []
    assert type(error).__name__ in bench.detail()


async def test_an_upload_whose_answer_was_lost_is_not_announced(bench: Bench) -> None:
    bench.store.inject(LoseReply(Transient("lost")), "put")
    assert await bench.save(0) is SaveFate.FAILED
    assert bench.index.log == []


async def test_a_failed_announcement_is_a_failed_save(bench: Bench) -> None:
    bench.index.error = Throttled("index full")
    assert await bench.save(0) is SaveFate.FAILED
    assert "index full" in bench.detail()


async def test_a_failed_look_is_a_failed_save_and_keeps_no_slot(bench: Bench) -> None:
    bench.store.inject(Fail(Transient("down")), "stat")
    assert await bench.save(0) is SaveFate.FAILED


# ------------------------------------------------------------------ R1: when to skip
async def test_a_young_shard_of_the_right_size_is_not_uploaded_again(bench: Bench) -> None:
    bench.memory.write(key_of(identity_of(0)), bytes(GEOMETRY.shard_bytes(4)))
    bench.clock.jump(BOUND_S - 1)
    assert await bench.save(0) is SaveFate.FOUND
    assert bench.operations() == ["stat"]
    assert bench.index.log == [("live", identity_of(0).chunk_hash, 4)], "found, so announced"


async def test_a_listed_chunk_needs_no_request_and_no_announcement(bench: Bench) -> None:
    bench.index.listed.add(identity_of(0).chunk_hash)
    assert await bench.save(0) is SaveFate.FOUND
    assert bench.operations() == []
    assert bench.index.log == []


async def test_an_old_shard_is_uploaded_again(bench: Bench) -> None:
    """It may be deleted as old garbage at any moment."""
    bench.memory.write(key_of(identity_of(0)), bytes(GEOMETRY.shard_bytes(4)))
    bench.clock.jump(BOUND_S + 1)
    assert await bench.save(0) is SaveFate.UPLOADED


@pytest.mark.parametrize("size", [0, GEOMETRY.shard_bytes(4) - 1, GEOMETRY.shard_bytes(4) + 1])
async def test_a_shard_of_another_size_is_uploaded_again(bench: Bench, size: int) -> None:
    bench.memory.write(key_of(identity_of(0)), bytes(size))
    assert await bench.save(0) is SaveFate.UPLOADED
    assert len(bench.memory.objects[key_of(identity_of(0))]) == GEOMETRY.shard_bytes(4)


async def test_a_shard_known_dead_is_uploaded_whatever_a_look_would_find(bench: Bench) -> None:
    bench.memory.write(key_of(identity_of(0)), bytes(GEOMETRY.shard_bytes(4)))
    bench.index.dead.add(identity_of(0).chunk_hash)
    assert await bench.save(0) is SaveFate.UPLOADED
    assert bench.operations() == ["put"]


async def test_a_rewrite_looks_at_nothing(bench: Bench) -> None:
    bench.memory.write(key_of(identity_of(0)), bytes(GEOMETRY.shard_bytes(4)))
    bench.index.listed.add(identity_of(0).chunk_hash)
    assert await bench.save(0, rewrite=True) is SaveFate.UPLOADED
    assert bench.operations() == ["put"]
    assert len(bench.index.log) == 1, "a rewritten chunk is announced although it is listed"


async def test_presence_is_asked_when_the_chunk_leaves_the_queue(bench: Bench) -> None:
    """Another engine may have archived the same prompt while this one waited."""
    hold = await bench.crowd()
    await bench.clock.settle()
    bench.index.listed.add(identity_of(2).chunk_hash)
    hold.released.set()
    await bench.ended()
    assert bench.outcomes[identity_of(2).chunk_hash] == [(SaveFate.FOUND, "")]
    assert key_of(identity_of(2)) not in bench.memory.objects
