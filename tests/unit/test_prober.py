"""Probe mode: the longest archived prefix from a few HEADs, whatever the bucket looks like."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.base import Missing, ObjectInfo
from s3kv.bucket.memory import MemoryStore
from s3kv.core.chunking import Chunk
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.keys import shard_key
from s3kv.errors import Transient
from s3kv.runtime.prober import FAN_OUT, Prober, probe_points

NS = NamespaceId("0123456789abcdef0123456789abcdef")
GEOMETRY = ShardGeometry((GroupGeometry("full", 1, 8),), 2)
TIMEOUT_S = 30.0


def chunk(index: int, block_count: int = 2) -> Chunk:
    name = BlockHash(hashlib.sha256(f"{index}".encode()).digest())
    return Chunk(index * 2, index * 2 + block_count, name)


class Counted(MemoryStore):
    """Counts rounds: HEADs that began while none was under way begin a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 0
        self.running = 0
        self.most_running = 0

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        self.heads += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await super().stat(key, timeout_s=timeout_s)
        finally:
            self.running -= 1


def archived(indices: Collection[int], tail: Chunk | None = None, writers: int = 1) -> Counted:
    store = Counted()
    there = [chunk(i) for i in indices] + ([tail] if tail is not None else [])
    for one in there:
        for writer in range(writers):
            key = shard_key(NS, one.chunk_hash, writer, writers)
            store.write(key, b"x" * GEOMETRY.shard_bytes(one.block_count))
    return store


async def ask(store: Counted, count: int, tail: Chunk | None = None, writers: int = 1) -> int:
    """Blocks found for a prompt of `count` full chunks."""
    prober = Prober(store, NS, GEOMETRY, writers)
    found = await prober.longest_prefix([chunk(i) for i in range(count)], tail, TIMEOUT_S)
    for index, one in enumerate(found):
        assert one == (chunk(index) if index < count else tail)
    return sum(one.block_count for one in found)


@given(low=st.integers(0, 500), span=st.integers(1, 3_000), count=st.integers(2, 40))
def test_probe_points_lie_in_the_gap_and_reach_both_ends(low: int, span: int, count: int) -> None:
    points = probe_points(low, low + span, count)
    assert points == sorted(set(points))
    assert 1 <= len(points) <= count
    assert points[0] == low + 1
    assert points[-1] == low + span


@given(count=st.integers(0, 300), hits=st.integers(0, 300))
def test_without_holes_the_whole_archived_prefix_is_found(count: int, hits: int) -> None:
    store = archived(range(min(hits, count)))
    assert asyncio.run(ask(store, count)) == 2 * min(hits, count)
    assert store.most_running <= FAN_OUT


@given(count=st.integers(1, 60), there=st.sets(st.integers(0, 59)))
def test_what_is_found_ends_at_a_chunk_that_is_really_there(count: int, there: set[int]) -> None:
    found = asyncio.run(ask(archived(there), count)) // 2
    assert found == 0 or found - 1 in there
    if 0 not in there:
        assert found == 0


async def test_long_prompts_cost_a_few_rounds() -> None:
    store = archived(range(700))
    assert await ask(store, 1_000) == 1_400
    assert store.heads <= 5 * FAN_OUT


async def test_nothing_archived_costs_one_round() -> None:
    store = archived([])
    assert await ask(store, 1_000) == 0
    assert store.heads <= FAN_OUT


async def test_the_prompt_s_own_tail_counts_after_all_full_chunks_only() -> None:
    tail = chunk(3, block_count=1)
    assert await ask(archived(range(3), tail), 3, tail) == 7
    assert await ask(archived(range(2), tail), 3, tail) == 4
    assert await ask(archived(range(3)), 3, tail) == 6
    only = chunk(0, block_count=1)
    assert await ask(archived([], only), 0, only) == 1


async def test_a_chunk_counts_only_when_every_writer_s_shard_is_there() -> None:
    store = archived(range(3), writers=2)
    assert await ask(store, 3, writers=2) == 6
    await store.delete([shard_key(NS, chunk(1).chunk_hash, 1, 2)], timeout_s=TIMEOUT_S)
    assert await ask(store, 3, writers=2) == 2


@pytest.mark.parametrize("size", [0, GEOMETRY.shard_bytes(2) - 1, GEOMETRY.shard_bytes(2) + 1])
async def test_an_object_of_another_size_is_not_there(size: int) -> None:
    store = archived(range(3))
    store.write(shard_key(NS, chunk(1).chunk_hash, 0, 1), b"x" * size)
    assert await ask(store, 3) == 2


class Broken(Counted):
    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        raise Transient("down")


async def test_the_store_s_errors_come_through() -> None:
    with pytest.raises(Transient):
        await ask(Broken(), 3, chunk(3, block_count=1))


class Silent(Counted):
    async def stat(self, key: str, *, timeout_s: float) -> Any:
        await asyncio.Event().wait()


async def test_a_store_that_does_not_answer_is_given_up_and_leaves_no_task() -> None:
    prober = Prober(Silent(), NS, GEOMETRY, 1)
    with pytest.raises(TimeoutError):
        await prober.longest_prefix([chunk(0)], chunk(1, block_count=1), 0.01)
    for _ in range(20):  # turns in which cancelled tasks end
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
