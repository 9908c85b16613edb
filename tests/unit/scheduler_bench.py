"""A scheduler side without an engine, on an archive whose index the test writes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from s3kv.config import parse_settings
from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.namespace import Namespace
from s3kv.core.snapshot import Pause, Snapshot
from tests.fakes.clock import FakeClock
from tests.fakes.small_archive import small_namespace
from tests.unit.connector_values import (
    BLOCK,
    CHUNK_BLOCKS,
    FakePool,
    FakeRequest,
    LookupDesk,
    Plan,
    Report,
    chain_of,
    step_of,
)
from tests.unit.engine_values import facts_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector.scheduler import SchedulerSide

TOKENS = 14 * BLOCK + 3
CHAIN = chain_of(14)
TABLE = list(range(1, 16))
CHUNK_ENDS = (CHAIN[3], CHAIN[7], CHAIN[11], CHAIN[13])
NOTHING = Plan()
RUNNING = Pause()


class OpenedArchive:
    """An archive whose index the test writes and that believes what it is told at once."""

    def __init__(self, clock: FakeClock, label: str, pause: Pause) -> None:
        self._clock = clock
        self.namespace: Namespace = small_namespace(label)
        self.snapshot = Snapshot(
            opened=True, head_seen_s=clock.monotonic_s(), head_ttl_s=3_600.0, pause=pause
        )
        self.refused = ""
        self.closed = False

    def note(self, chunks: Sequence[tuple[BlockHash, int]], *, dead: bool) -> None:
        fps, now_s = fingerprints([chunk_hash for chunk_hash, _ in chunks]), self._clock.unix_s()
        order = np.argsort(fps)
        fps = fps[order]
        blocks = np.array([count for _, count in chunks], np.uint16)[order]
        known = self.snapshot
        records = known.dead_records(fps, now_s) if dead else known.live_records(fps, blocks, now_s)
        self.snapshot = known.absorb(records)

    def probe(
        self, full: Sequence[Chunk], tail: Chunk | None, timeout_s: float
    ) -> Future[tuple[Chunk, ...]]:
        raise AssertionError("a fresh index is not probed")

    def close(self) -> None:
        self.closed = True

    @property
    def listed(self) -> list[BlockHash]:
        return [name for name in CHUNK_ENDS if self.snapshot.present(fingerprints([name]))[0]]


class Bench:
    """A scheduler side on a pool of blocks, with an archive that is open."""

    def __init__(
        self, *, pause: Pause = RUNNING, refusal: str = "", opened: bool = True, **extra: Any
    ) -> None:
        facts = facts_of(refusal=refusal)
        raw = {
            "uri": "s3://bucket/prefix",
            "weights_digest": "mine",
            "chunk_tokens": CHUNK_BLOCKS * BLOCK,
            "min_tail_tokens": 2 * BLOCK,
            **extra,
        }
        config: Any = SimpleNamespace()
        self.side = SchedulerSide(config, facts, parse_settings(raw))
        self.clock = FakeClock()
        self.side._clock = self.clock
        self.pool: Any = FakePool()
        self.side.bind_pool(self.pool)
        if opened:
            self.archive = self.open("before", pause)

    def open(self, label: str, pause: Pause = RUNNING) -> OpenedArchive:
        """What the side does once its workers have agreed."""
        archive: Any = OpenedArchive(self.clock, label, pause)
        self.side._archive = archive
        self.side._desk = LookupDesk(archive, "off", 0.1)
        self.side._acknowledged = False
        self.archive = archive
        return self.archive

    def request(self, name: str = "r", **more: Any) -> Any:
        return FakeRequest.of(TOKENS, name=name, **more)

    def step(self, request: Any, tokens: int = TOKENS) -> Plan:
        output: Any = step_of({request.request_id: tokens}, {request.request_id: TABLE})
        plan = self.side.plan_step(output)
        request.num_computed_tokens += tokens
        return plan

    def hear(self, report: Report, received: Sequence[str] = (), bad: Sequence[int] = ()) -> None:
        output: Any = SimpleNamespace(
            kv_connector_worker_meta=report,
            finished_recving=set(received),
            invalid_block_ids=set(bad),
        )
        self.side.unpin(output)
        self.side.absorb(output)

    def miss_reason(self, request: Any) -> object:
        """What the client of a request is told when it ends now."""
        report: Any = self.side.finished(request)
        return report["s3kv"].get("miss_reason")


def acknowledged(bench: Bench) -> Report:
    return Report(opened={bench.archive.namespace.id: 1})


def names(plan: Plan) -> list[BlockHash]:
    return [job.address.chunk_hash for job in plan.saves]


def blocks(count: int = 14) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (TABLE[:count],))
