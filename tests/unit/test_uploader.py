"""Saves: announced when durable (R2) and in time (R5), never skipped on a bad hint (R1).

A store in memory with faults, an index that is a list, a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from s3kv.bucket.faults import Fail, Faulty, Hold, LoseReply
from s3kv.bucket.memory import MemoryStore
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, NamespaceId
from s3kv.core.keys import shard_key
from s3kv.core.shard import ShardIdentity, verify_blocks, verify_header
from s3kv.errors import Closed, Denied, S3KVError, Throttled, Transient
from s3kv.runtime.ports import LentSlot
from s3kv.runtime.uploader import SaveFate, Uploader, UploadSettings
from tests.fakes.clock import FakeClock

NS = NamespaceId("0123456789abcdef0123456789abcdef")
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 24),), 4)
MIN_AGE_S = 3600.0
BOUND_S = MIN_AGE_S / 2
TAIL_BLOCKS = 3


def identity_of(index: int, block_count: int = 4) -> ShardIdentity:
    names = tuple(
        BlockHash(hashlib.sha256(b"%d.%d" % (index, i)).digest()) for i in range(block_count)
    )
    return ShardIdentity(NS, names[-1], ZERO_HASH, names, 0, 1)


def key_of(identity: ShardIdentity) -> str:
    return shard_key(NS, identity.chunk_hash, 0, 1)


def pattern(index: int, block_count: int = 4) -> bytes:
    return bytes((index * 31 + i) % 251 for i in range(block_count * GEOMETRY.block_bytes))


@dataclass(eq=False)
class FakeSlot:
    memory: memoryview


@dataclass
class FakeIndex:
    """Announces into a list; looks at the store when it does, as a reader would."""

    memory: MemoryStore
    log: list[tuple[str, BlockHash, int]] = field(default_factory=list)
    listed: set[BlockHash] = field(default_factory=set)
    dead: set[BlockHash] = field(default_factory=set)
    error: S3KVError | None = None
    on_announce: Callable[[], None] = lambda: None
    was_durable: list[bool] = field(default_factory=list)
    announced_by_s: list[float] = field(default_factory=list)

    async def announce(self, chunk_hash: BlockHash, block_count: int, announce_by_s: float) -> None:
        self.announced_by_s.append(announce_by_s)
        self.was_durable.append(shard_key(NS, chunk_hash, 0, 1) in self.memory.objects)
        if self.error is not None:
            raise self.error
        self.on_announce()
        self.log.append(("live", chunk_hash, block_count))

    async def disown(self, chunk_hash: BlockHash, block_count: int) -> None:
        self.log.append(("dead", chunk_hash, block_count))

    def knows(self, chunk_hash: BlockHash) -> bool:
        return chunk_hash in self.listed

    def knows_dead(self, chunk_hash: BlockHash) -> bool:
        return chunk_hash in self.dead


@dataclass
class Bench:
    memory: MemoryStore
    store: Faulty
    index: FakeIndex
    clock: FakeClock
    uploader: Uploader
    outcomes: dict[BlockHash, list[tuple[SaveFate, str]]] = field(default_factory=dict)
    lent: set[LentSlot] = field(default_factory=set)
    returned_before: list[str] = field(default_factory=list)

    def submit(self, index: int = 0, *, block_count: int = 4, rewrite: bool = False) -> None:
        identity = identity_of(index, block_count)
        slot: LentSlot = FakeSlot(memoryview(bytearray(GEOMETRY.slot_bytes)))
        data = pattern(index, block_count)
        slot.memory[GEOMETRY.header_bytes : GEOMETRY.header_bytes + len(data)] = data
        self.lent.add(slot)
        outcomes = self.outcomes.setdefault(identity.chunk_hash, [])
        self.uploader.submit(
            identity,
            slot,
            self._give_back,
            lambda fate, detail: outcomes.append((fate, detail)),
            rewrite=rewrite,
        )

    def _give_back(self, slot: LentSlot) -> None:
        assert slot in self.lent, "given back twice"
        self.lent.remove(slot)
        slot.memory[:] = b"\xee" * len(slot.memory)
        self.returned_before.append("live" if self.index.log else "announcement")

    async def save(
        self, index: int = 0, *, block_count: int = 4, rewrite: bool = False
    ) -> SaveFate:
        """One save to its end: its slot is back, its outcome is one."""
        self.submit(index, block_count=block_count, rewrite=rewrite)
        await self.ended()
        ((fate, _),) = self.outcomes[identity_of(index, block_count).chunk_hash]
        assert not self.lent
        return fate

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            while self.uploader.pending_count:  # noqa: ASYNC110  tasks end by themselves
                await asyncio.sleep(0)

    def detail(self, index: int = 0) -> str:
        ((_, detail),) = self.outcomes[identity_of(index).chunk_hash]
        return detail

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.store.calls]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s)
    store, index = Faulty(memory), FakeIndex(memory)
    settings = UploadSettings(min_age_s=MIN_AGE_S, concurrency=2)
    with ThreadPoolExecutor(1) as hashing:
        uploader = Uploader(store, index, GEOMETRY, hashing, clock, settings)
        made = Bench(memory, store, index, clock, uploader)
        yield made
        store.heal()
        await uploader.drain(20)
    assert not made.lent
    assert all(len(outcomes) == 1 for outcomes in made.outcomes.values())


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
    hold = Hold()
    bench.store.inject(hold, "put", times=2)
    for index in (0, 1, 2):
        bench.submit(index)
    await hold.entered.wait()
    await bench.clock.settle()
    bench.index.listed.add(identity_of(2).chunk_hash)
    hold.released.set()
    await bench.ended()
    assert bench.outcomes[identity_of(2).chunk_hash] == [(SaveFate.FOUND, "")]
    assert key_of(identity_of(2)) not in bench.memory.objects


# ------------------------------------------------------------------ R5
async def test_an_upload_that_took_too_long_is_not_announced(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put")
    bench.submit(0)
    await hold.entered.wait()
    bench.clock.jump(BOUND_S + 1)
    hold.released.set()
    await bench.ended()
    assert bench.outcomes[identity_of(0).chunk_hash] == [(SaveFate.TOO_SLOW, "")]
    assert bench.index.log == []


async def test_the_index_is_told_until_when_a_chunk_may_be_announced(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put")
    began_s = bench.clock.monotonic_s()
    bench.submit(0)
    await hold.entered.wait()
    bench.clock.jump(BOUND_S / 2)
    hold.released.set()
    await bench.ended()
    assert bench.index.announced_by_s == [began_s + BOUND_S]


async def test_waiting_in_the_queue_counts(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put", times=2)
    for index in (0, 1, 2):
        bench.submit(index)
    await hold.entered.wait()
    bench.clock.jump(BOUND_S + 1)
    hold.released.set()
    await bench.ended()
    assert {fate for ((fate, _),) in bench.outcomes.values()} == {SaveFate.TOO_SLOW}


async def test_after_a_slow_announcement_the_shard_is_looked_at_again(bench: Bench) -> None:
    bench.index.on_announce = lambda: bench.clock.jump(BOUND_S + 1)
    assert await bench.save(0) is SaveFate.UPLOADED
    assert bench.operations() == ["stat", "put", "stat"]
    assert [what for what, *_ in bench.index.log] == ["live"]


async def test_a_shard_swept_during_a_slow_announcement_is_disowned(bench: Bench) -> None:
    async def swept() -> None:
        await bench.memory.delete([key_of(identity_of(0))], timeout_s=1)

    def slow() -> None:
        bench.clock.jump(BOUND_S + 1)
        sweeping.append(asyncio.ensure_future(swept()))

    sweeping: list[asyncio.Future[None]] = []
    hold = Hold()
    bench.index.on_announce = slow
    bench.store.inject(hold, "stat", skip=1)
    bench.submit(0)
    await hold.entered.wait()
    await asyncio.gather(*sweeping)
    hold.released.set()
    await bench.ended()
    assert bench.outcomes[identity_of(0).chunk_hash] == [(SaveFate.TOO_SLOW, "")]
    assert bench.index.log == [
        ("live", identity_of(0).chunk_hash, 4),
        ("dead", identity_of(0).chunk_hash, 4),
    ]


# ------------------------------------------------------------------ bounds and the end
async def test_uploads_in_flight_are_bounded(bench: Bench) -> None:
    hold = Hold()
    bench.store.inject(hold, "put", times=None)
    for index in range(5):
        bench.submit(index)
    async with asyncio.timeout(20):
        while bench.operations().count("put") < 2:  # noqa: ASYNC110  sealing runs on threads
            await asyncio.sleep(0)
    await bench.clock.settle()
    assert bench.operations().count("put") == 2
    assert bench.uploader.pending_count == 5
    hold.released.set()
    await bench.ended()
    assert len(bench.memory.objects) == 5


async def test_draining_waits_for_what_is_under_way(bench: Bench) -> None:
    for index in range(5):
        bench.submit(index)
    assert await bench.uploader.drain(20) == 0
    assert len(bench.memory.objects) == 5
    assert bench.uploader.pending_count == 0


async def test_draining_an_idle_uploader_returns_at_once(bench: Bench) -> None:
    assert await bench.uploader.drain(0) == 0


async def test_what_does_not_end_while_draining_is_lost_and_reported(bench: Bench) -> None:
    bench.store.inject(Hold(), "put", times=None)
    for index in range(3):
        bench.submit(index)
    assert await bench.uploader.drain(0.1) == 3
    assert bench.uploader.pending_count == 0
    assert not bench.lent
    assert list(bench.outcomes.values()) == [[(SaveFate.FAILED, "cancelled")]] * 3
    assert bench.index.log == []


async def test_one_failure_leaves_the_others_alone(bench: Bench) -> None:
    bench.store.inject(Fail(Transient("down")), "put", keys=key_of(identity_of(1)))
    for index in range(3):
        bench.submit(index)
    await bench.ended()
    fates = [bench.outcomes[identity_of(i).chunk_hash][0][0] for i in range(3)]
    assert fates == [SaveFate.UPLOADED, SaveFate.FAILED, SaveFate.UPLOADED]


async def test_a_save_cancelled_before_its_first_step_still_ends_once(bench: Bench) -> None:
    bench.submit(0)
    assert await bench.uploader.drain(timeout_s=0) == 1
    assert bench.outcomes[identity_of(0).chunk_hash] == [(SaveFate.FAILED, "cancelled")]
    assert not bench.lent


async def test_a_slot_goes_back_only_when_its_sealing_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, may_end = threading.Event(), threading.Event()

    def slow_seal(memory: memoryview, *rest: object) -> memoryview:
        sealing.set()
        assert may_end.wait(20)
        memory[:1] = b"x"
        return memory

    monkeypatch.setattr("s3kv.runtime.uploader.seal", slow_seal)
    bench.submit(0)
    while not sealing.is_set():  # noqa: ASYNC110  set by another thread
        await asyncio.sleep(0)
    draining = asyncio.ensure_future(bench.uploader.drain(timeout_s=0))
    await bench.clock.settle()
    assert bench.lent, "the thread still writes into the slot"
    may_end.set()
    assert await draining == 1
    assert not bench.lent
