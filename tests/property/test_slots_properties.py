"""Whatever lending, waiting, cancelling and giving back do in which order: no slot is lost."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from s3kv.device.slots import Purpose, Slot, SlotPool

purposes = st.sampled_from(Purpose)


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still until it is told to move, so that timeouts are exact."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class SlotPoolMachine(RuleBasedStateMachine):
    """Waiters make progress only in `let_run`: grants, expiry and cancelling meet in between."""

    def __init__(self) -> None:
        super().__init__()
        self.slot_count = 3
        self.pool = SlotPool(slot_bytes=8, slot_count=self.slot_count)
        self.loop = SteppedLoop()
        self.owned: list[Slot] = []
        self.waiting: list[asyncio.Task[Slot | None]] = []
        self.purpose_of: dict[asyncio.Task[Slot | None], Purpose] = {}

    def teardown(self) -> None:
        for task in self.waiting:
            task.cancel()
        self.settle()
        assert self.waiting == []
        for slot in self.owned:
            self.pool.give_back(slot)
        assert self.pool.free_count == self.slot_count
        self.pool.close()
        self.loop.close()

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        for task in [task for task in self.waiting if task.done()]:
            self.waiting.remove(task)
            if not task.cancelled() and (slot := task.result()) is not None:
                self.owned.append(slot)

    @rule(purpose=purposes)
    def try_lend(self, purpose: Purpose) -> None:
        free_count = self.pool.free_count
        slot = self.pool.try_lend(purpose)
        if purpose is Purpose.LOAD:
            assert (slot is not None) == (free_count > 0)
        if slot is not None:
            self.owned.append(slot)

    @rule(purpose=purposes, timeout_s=st.sampled_from([0.0, 1.0, 2.0]))
    def wait(self, purpose: Purpose, timeout_s: float) -> None:
        task = self.loop.create_task(self.pool.lend(purpose, timeout_s))
        self.purpose_of[task] = purpose
        self.waiting.append(task)

    @rule()
    def let_run(self) -> None:
        self.settle()
        still_waiting = {self.purpose_of[task] for task in self.waiting}
        if self.pool.free_count > 0:
            assert Purpose.LOAD not in still_waiting
        if self.pool.free_count > 1:
            assert Purpose.SAVE not in still_waiting

    @rule()
    def let_time_pass(self) -> None:
        self.loop.now_s += 1.0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting)).cancel()

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.owned))
        self.owned.remove(slot)
        giver = threading.Thread(target=self.pool.give_back, args=(slot,))
        giver.start()
        giver.join()

    @invariant()
    def every_slot_is_free_or_lent_once(self) -> None:
        assert self.pool.free_count + self.pool.lent_count == self.slot_count
        owned_indices = [slot.index for slot in self.owned]
        assert len(set(owned_indices)) == len(owned_indices)
        # What is lent and not owned was granted to a waiter that has not run since.
        granted_count = self.pool.lent_count - len(self.owned)
        assert 0 <= granted_count <= len(self.waiting)

    @invariant()
    def saves_leave_one_slot(self) -> None:
        owned_saves = sum(slot.purpose is Purpose.SAVE for slot in self.owned)
        assert owned_saves < self.slot_count


TestSlotPool = SlotPoolMachine.TestCase
TestSlotPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
