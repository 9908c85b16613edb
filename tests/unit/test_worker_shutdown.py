"""A worker that is told to stop: it hears what the store can do, publishes, and ends in time."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from s3kv.bucket.faults import Faulty, Hold
from s3kv.bucket.memory import MemoryStore
from s3kv.config import parse_settings
from s3kv.core import keys
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH
from s3kv.device.slots import SlotPool
from tests.fakes.namespaces import LAYOUT, make_namespace
from tests.unit.connector_values import ChunkAddress, Plan, SaveJob, Staging, chain_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector import worker as worker_module
    from s3kv.connector.messages import NamespaceTicket
    from s3kv.connector.store_check import Verdict
    from s3kv.connector.worker import WorkerSide

NAMESPACE = make_namespace()
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 64),), 4)
PROMISE_S = 4.0
"""vLLM kills a worker 5 s after it asked it to stop."""
SHORT_S = 0.6


@dataclass
class InstantCopier:
    """Copies end at once."""

    def fence(self) -> None:
        return None

    def stage(self, block_ids: object, view: object, after: object, on_done: Any) -> None:
        on_done(None)

    def close(self, timeout_s: float) -> int:
        return 0


class LateVerdict:
    """Stands for the start-up look at the store: answers when shutdown waits for it, or never."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.asked = threading.Event()

    async def __call__(self, *_: object) -> Verdict:
        self.asked.set()
        while not (self.answers and any(_is_closing(task) for task in asyncio.all_tasks())):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        # Once more, so that a shutdown which does not wait is through by now.
        for _turn in range(10):
            await asyncio.sleep(0)
        return Verdict()


def _is_closing(task: asyncio.Task[Any]) -> bool:
    return "WorkerSide._close" in repr(task.get_coro())


@dataclass
class Bench:
    memory: MemoryStore
    store: Faulty
    side: WorkerSide
    addresses: list[ChunkAddress] = field(default_factory=list)

    def save(self) -> None:
        names = tuple(chain_of(4, seed=f"chunk {len(self.addresses)}"))
        address = ChunkAddress(names[-1], ZERO_HASH, names)
        self.addresses.append(address)
        job = SaveJob(len(self.addresses), NAMESPACE.id, address, (0, 1, 2, 3), rewrite=False)
        self.side.stage(job, self.side.fence())

    def stored(self) -> list[bool]:
        names = [keys.shard_key(NAMESPACE.id, a.chunk_hash, 0, 1) for a in self.addresses]
        return [name in self.memory.objects for name in names]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    memory = MemoryStore()
    store = Faulty(memory)
    staging = Staging(GEOMETRY, SlotPool(GEOMETRY.slot_bytes, 8), InstantCopier())  # type: ignore[arg-type]
    monkeypatch.setattr(worker_module, "make_staging", lambda *_: staging)
    monkeypatch.setattr(worker_module, "describe_layout", lambda *_: LAYOUT)
    monkeypatch.setattr(worker_module, "make_store", lambda *_: store)
    facts = SimpleNamespace(refusal="", rank=0, block_tokens=16)
    settings = parse_settings({"uri": "s3://bucket/prefix", "ttl_s": "30d"})
    side = WorkerSide(None, None, facts, settings)  # type: ignore[arg-type]
    made = Bench(memory, store, side)
    yield made
    side.shutdown()


def open_archive(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
    verdict = LateVerdict(answers=answers)
    monkeypatch.setattr(worker_module, "look_at_store", verdict)
    bench.side.register({})
    bench.side.open(Plan(NamespaceTicket(NAMESPACE.document)))
    assert verdict.asked.wait(20)


def test_the_store_is_reached_while_the_engine_still_starts(bench: Bench) -> None:
    reached = threading.Event()
    original = bench.memory.stat

    async def stat(key: str, *, timeout_s: float) -> Any:
        reached.set()
        return await original(key, timeout_s=timeout_s)

    bench.memory.stat = stat  # type: ignore[method-assign]
    bench.side.register({})

    assert reached.wait(20)
    assert bench.memory.objects == {}


def test_an_engine_that_stops_before_the_verdict_waits_for_it_and_publishes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_archive(bench, monkeypatch, answers=True)
    bench.save()
    assert bench.stored() == [False], "nothing is uploaded before the verdict"

    bench.side.shutdown()

    assert bench.stored() == [True]
    assert bench.side.outbox.counts["saves_uploaded"] == 1


def test_a_verdict_that_never_comes_costs_the_saves_and_not_the_shutdown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SHUTDOWN_S", SHORT_S)
    open_archive(bench, monkeypatch, answers=False)
    bench.save()

    bench.side.shutdown()

    assert bench.stored() == [False]
    assert bench.side.outbox.counts["saves_store_unknown"] == 1


def test_a_store_that_hangs_in_every_request_does_not_hold_a_shutdown_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SHUTDOWN_S", SHORT_S)
    open_archive(bench, monkeypatch, answers=True)
    bench.store.inject(Hold(), times=None)
    bench.save()
    bench.save()

    bench.side.shutdown()

    assert bench.stored() == [False, False]
    assert not any(thread.name == "s3kv-worker" for thread in threading.enumerate())


def test_all_that_a_shutdown_may_wait_for_adds_up_to_less_than_the_engine_grants() -> None:
    """`shutdown`: copies, verdict, uploads and commits share one end; then the loop is closed."""
    for_the_result = worker_module.LOOP_CLOSE_S
    for_tasks_and_thread = 2 * worker_module.LOOP_CLOSE_S

    assert worker_module.SHUTDOWN_S + for_the_result + for_tasks_and_thread < PROMISE_S
    assert worker_module.COPIES_S < worker_module.SHUTDOWN_S
