"""What real index clients did on a real store is what the simulation would have done."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from s3kv.core import requests as core
from s3kv.core.compactor import CompactorSettings
from s3kv.core.records import make_records
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexSettings
from tests.bucket.stores import connected_store
from tests.fakes.namespaces import make_namespace
from tests.simulation.ledger import Deal, Ledger, differences
from tests.simulation.replay import Draws, TapedReader, TapedWriter, known, play

pytestmark = pytest.mark.timeout(180)

NAMESPACE = make_namespace()
SETTINGS = IndexSettings(
    poll_interval_s=0.25, compactor=CompactorSettings(ticks_min=3, check_s=1.0)
)
CHUNKS = 60
WITHIN_S = 120.0
"""For everything that is to be seen once: a bound, it takes about ten seconds."""


class Sleeper(Clock):
    """The clock of a machine that was suspended for a while."""

    slept_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.slept_s


class Recording:
    """Three writers and two readers in one process, on one store."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sleeper = Sleeper()
        self.reader = TapedReader(ledger, NAMESPACE, self.sleeper, SETTINGS, Draws(0))
        self.latecomer = TapedReader(ledger, NAMESPACE, Clock(), SETTINGS, Draws(0))
        self.writers = [
            TapedWriter(ledger, NAMESPACE, Clock(), SETTINGS, Draws(seed)) for seed in (1, 2, 3)
        ]

    @property
    def clients(self) -> list[TapedReader]:
        return [self.reader, self.latecomer, *self.writers]

    async def make(self) -> None:
        """Commit until a leader has been followed by another, somebody has slept, somebody has
        opened a log with a full inbox, and the log was compacted."""
        following = {
            client: asyncio.create_task(client.run()) for client in (self.reader, *self.writers)
        }
        for client in following:
            await client.wait_opened()
        alive = list(self.writers)
        working = {w: asyncio.create_task(self._work(w, seed)) for seed, w in enumerate(alive)}
        await _until(lambda: any(writer.sequencer.leads for writer in alive))
        leader = next(writer for writer in alive if writer.sequencer.leads)
        await _until(lambda: leader.snapshot.head >= 3)
        for task in (working[leader], following[leader]):
            task.cancel()
        alive.remove(leader)
        polls = self.reader.counts.polls
        # Whoever takes over waits for 2 s at least: the sleeper will find nothing new.
        await _until(lambda: self.reader.counts.polls >= polls + 2)
        resyncs, self.sleeper.slept_s = self.reader.follower.resync_count, 2 * SETTINGS.head_ttl_s
        written = len(self.ledger.deals)
        await _until(lambda: any(_is_segment(deal) for deal in self.ledger.deals[written:]))
        following[self.latecomer] = asyncio.create_task(self.latecomer.run())
        await self.latecomer.wait_opened()
        await _until(lambda: self.reader.follower.resync_count > resyncs)
        await _until(lambda: any(w._compactor.counts.runs_written for w in alive))
        for task in (*working.values(), *following.values()):
            task.cancel()
        await asyncio.gather(*working.values(), *following.values(), return_exceptions=True)
        await self.ledger.settle()

    async def _work(self, writer: TapedWriter, seed: int) -> None:
        dice = random.Random(seed)
        while True:
            fps = np.array([dice.randrange(1, CHUNKS)], np.uint64)
            if dice.random() < 0.2:
                records = writer.snapshot.dead_records(fps, time.time())
                writer.note(records)
            else:
                records = make_records(fps, int(time.time()), 16)
            await writer.commit(records)
            await asyncio.sleep(dice.uniform(0.05, 0.3))


async def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def recording(seaweed_endpoint: str, aws_environment: None) -> Recording:
    """One run on SeaweedFS."""

    async def run() -> Recording:
        async with connected_store(seaweed_endpoint, "s3://s3kv-tests/replay") as store:
            made = Recording(Ledger(store))
            await made.make()
            return made

    return asyncio.run(run())


def test_fresh_state_machines_do_the_same_with_the_same_replies(recording: Recording) -> None:
    for client in recording.clients:
        machines = client.fresh()
        play(client.tape, machines)

        assert known(machines.follower.snapshot) == known(client.snapshot)


def test_the_bucket_of_the_simulation_answers_as_the_store_did(recording: Recording) -> None:
    deals = [deal for deal in recording.ledger.deals if "NAMESPACE" not in str(deal.request)]

    assert {type(deal.request).__name__ for deal in deals} >= {"Get", "Put", "Create", "ListPage"}
    assert differences(deals) == []
    assert differences(_without_first_tick(deals)) != []


def test_the_store_was_asked_for_nothing_else(recording: Recording) -> None:
    assert recording.ledger.unasked([client.tape for client in recording.clients]) == []


def _is_segment(deal: Deal) -> bool:
    return isinstance(deal.request, core.Put) and "/inbox/" in deal.request.key


def _without_first_tick(deals: list[Deal]) -> list[Deal]:
    at = next(i for i, deal in enumerate(deals) if deal.outcome == "created")
    return deals[:at] + deals[at + 1 :]
