"""A slot is free or has one owner; loads are served first; no way of waiting loses one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from s3kv.device.slots import SLOT_ALIGNMENT, Purpose, Slot, SlotPool
from s3kv.errors import Closed

LOAD, SAVE = Purpose.LOAD, Purpose.SAVE
LONG_S = 20.0


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    made = SlotPool(slot_bytes=5000, slot_count=3)
    yield made
    made.close()


def must_lend(pool: SlotPool, purpose: Purpose = LOAD) -> Slot:
    slot = pool.try_lend(purpose)
    assert slot is not None
    return slot


async def let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_slots_are_aligned_writable_and_do_not_overlap(pool: SlotPool) -> None:
    slots = [must_lend(pool) for _ in range(3)]
    for value, slot in enumerate(slots):
        assert slot.tensor.data_ptr() % SLOT_ALIGNMENT == 0
        assert slot.tensor.dtype == torch.uint8
        assert len(slot.memory) == slot.tensor.numel() == pool.slot_bytes == 5000
        slot.memory[:] = bytes([value]) * 5000
    for value, slot in enumerate(slots):
        assert (slot.tensor == value).all()


def test_memory_and_tensor_are_the_same_bytes(pool: SlotPool) -> None:
    slot = must_lend(pool)
    slot.tensor[17] = 200
    assert slot.memory[17] == 200


def test_a_pool_born_in_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        pool = SlotPool(64, 1)
    must_lend(pool).tensor.fill_(3)
    pool.close()


def test_counts_follow_lending_and_return(pool: SlotPool) -> None:
    assert (pool.free_count, pool.lent_count, pool.slot_count) == (3, 0, 3)
    slot = must_lend(pool)
    assert (pool.free_count, pool.lent_count) == (2, 1)
    pool.give_back(slot)
    assert (pool.free_count, pool.lent_count) == (3, 0)


def test_an_empty_pool_lends_nothing(pool: SlotPool) -> None:
    for _ in range(3):
        must_lend(pool)
    assert pool.try_lend(LOAD) is None


def test_saves_leave_the_last_slot_to_loads(pool: SlotPool) -> None:
    must_lend(pool, SAVE)
    save = must_lend(pool, SAVE)
    assert pool.try_lend(SAVE) is None
    load = must_lend(pool, LOAD)
    pool.give_back(load)
    assert pool.try_lend(SAVE) is None
    pool.give_back(save)
    must_lend(pool, SAVE)


def test_a_pool_of_one_slot_serves_saves_too() -> None:
    pool = SlotPool(64, 1)
    slot = must_lend(pool, SAVE)
    assert pool.try_lend(LOAD) is None
    pool.give_back(slot)
    pool.close()


def test_a_second_return_is_refused_even_if_the_slot_was_lent_again(pool: SlotPool) -> None:
    first = must_lend(pool)
    pool.give_back(first)
    with pytest.raises(AssertionError, match="twice"):
        pool.give_back(first)
    others = [must_lend(pool) for _ in range(3)]
    assert first.index in {slot.index for slot in others}
    with pytest.raises(AssertionError, match="twice"):
        pool.give_back(first)
    assert pool.lent_count == 3


def test_a_slot_of_another_pool_is_refused(pool: SlotPool) -> None:
    other = SlotPool(5000, 3)
    must_lend(pool)
    with pytest.raises(AssertionError, match="foreign"):
        pool.give_back(must_lend(other))
    other.close()


async def test_waiting_ends_with_a_slot_given_back_by_another_thread(pool: SlotPool) -> None:
    slots = [must_lend(pool) for _ in range(3)]
    waiting = asyncio.create_task(pool.lend(LOAD, LONG_S))
    await let_others_run()
    giver = threading.Thread(target=pool.give_back, args=(slots[0],))
    giver.start()
    got = await waiting
    giver.join()
    assert got is not None
    assert got.index == slots[0].index
    assert pool.lent_count == 3


async def test_waiting_ends_with_nothing_when_time_is_up(pool: SlotPool) -> None:
    slots = [must_lend(pool) for _ in range(3)]
    assert await pool.lend(LOAD, 0.01) is None
    pool.give_back(slots[0])
    assert pool.free_count == 1


async def test_waiting_without_time_still_gets_a_free_slot(pool: SlotPool) -> None:
    assert await pool.lend(LOAD, 0) is not None


async def test_loads_are_served_before_saves_and_each_in_order_of_arrival(pool: SlotPool) -> None:
    held = [must_lend(pool) for _ in range(3)]
    served: list[str] = []

    async def wait(name: str, purpose: Purpose) -> None:
        slot = await pool.lend(purpose, LONG_S)
        assert slot is not None
        served.append(name)
        pool.give_back(slot)

    async with asyncio.TaskGroup() as group:
        names = [("s1", SAVE), ("l1", LOAD), ("s2", SAVE), ("l2", LOAD)]
        for name, purpose in names:
            group.create_task(wait(name, purpose))
        await let_others_run()
        pool.give_back(held[0])
    assert served == ["l1", "l2", "s1", "s2"]


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next(pool: SlotPool) -> None:
    held = [must_lend(pool) for _ in range(3)]
    cancelled = asyncio.create_task(pool.lend(LOAD, LONG_S))
    waiting = asyncio.create_task(pool.lend(LOAD, LONG_S))
    await let_others_run()
    pool.give_back(held[0])  # granted to the first, which has not run since
    cancelled.cancel()
    assert await waiting is not None
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert pool.lent_count == 3


async def test_a_cancelled_waiter_that_was_not_granted_leaves_the_queue(pool: SlotPool) -> None:
    held = [must_lend(pool) for _ in range(3)]
    waiting = asyncio.create_task(pool.lend(LOAD, LONG_S))
    await let_others_run()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    pool.give_back(held[0])
    assert pool.free_count == 1


def test_a_waiter_whose_loop_is_gone_does_not_take_the_slot_with_it(pool: SlotPool) -> None:
    held = [must_lend(pool) for _ in range(3)]
    loop = asyncio.new_event_loop()
    lending = pool.lend(LOAD, LONG_S)

    async def begin() -> None:
        lending.send(None)  # runs up to the wait and stays there

    loop.run_until_complete(begin())
    loop.close()
    pool.give_back(held[0])
    assert pool.free_count == 1
    lending.close()
    gc.collect()
    assert pool.free_count == 1


async def test_closing_ends_every_wait_and_refuses_new_ones(pool: SlotPool) -> None:
    held = [must_lend(pool) for _ in range(3)]
    waiting = asyncio.create_task(pool.lend(LOAD, LONG_S))
    await let_others_run()
    pool.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        pool.try_lend(LOAD)
    with pytest.raises(Closed):
        await pool.lend(SAVE, LONG_S)
    for slot in held:
        pool.give_back(slot)
    assert pool.free_count == 3


def test_many_threads_never_share_a_slot() -> None:
    pool = SlotPool(slot_bytes=16, slot_count=4)
    wrong: list[str] = []

    def work(name: int) -> None:
        for _ in range(300):
            slot = pool.try_lend(LOAD if name % 2 else SAVE)
            if slot is None:
                continue
            slot.memory[:] = bytes([name]) * 16
            if bytes(slot.memory) != bytes([name]) * 16:
                wrong.append(f"{name} saw {bytes(slot.memory)!r}")
            pool.give_back(slot)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (pool.free_count, pool.lent_count) == (4, 0)
    pool.close()


@pytest.mark.parametrize(("slot_bytes", "slot_count"), [(0, 1), (1, 0)])
def test_a_pool_without_slots_is_refused(slot_bytes: int, slot_count: int) -> None:
    with pytest.raises(ValueError, match="needs slots"):
        SlotPool(slot_bytes, slot_count)
