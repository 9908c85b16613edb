"""Saves: announced in time (R5), bounded in number, and every slot back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from s3kv.bucket.faults import Fail, Hold
from s3kv.errors import Transient
from s3kv.runtime.uploader import SaveFate
from tests.fakes.chunks import identity_of, key_of
from tests.fakes.save_bench import BOUND_S, Bench, open_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


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
    hold = await bench.crowd()
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


# ------------------------------------------------------------------ a pause of saves
async def test_a_pause_ends_what_waits_and_lets_end_what_is_being_sent(bench: Bench) -> None:
    hold = await bench.crowd()
    bench.index.saves_paused = True
    hold.released.set()
    await bench.ended()

    fates = [bench.outcomes[identity_of(index).chunk_hash] for index in (0, 1, 2)]
    assert fates == [[(SaveFate.UPLOADED, "")], [(SaveFate.UPLOADED, "")], [(SaveFate.PAUSED, "")]]
    assert {chunk_hash for _, chunk_hash, _ in bench.index.log} == {
        identity_of(index).chunk_hash for index in (0, 1)
    }, "what was sent is announced, or it would be an orphan"
    assert bench.operations().count("put") == 2


async def test_a_paused_save_asks_the_store_nothing(bench: Bench) -> None:
    bench.index.saves_paused = True
    assert await bench.save(0, rewrite=True) is SaveFate.PAUSED
    assert bench.operations() == []

    bench.index.saves_paused = False
    assert await bench.save(1) is SaveFate.UPLOADED
