"""Saves of a rank: one acknowledgement, one outcome, and the slot back, on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH
from s3kv.device.slots import SlotPool
from s3kv.errors import Closed
from s3kv.runtime.uploader import SaveFate
from tests.unit.connector_values import (
    NS,
    ChunkAddress,
    Outbox,
    SaveJob,
    Saver,
    Staging,
    chain_of,
)

GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 64),), 4)


@dataclass
class NowLoop:
    """A loop thread whose calls happen at once."""

    alive: bool = True

    def call(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


@dataclass
class FakeCopier:
    """Copies end at once, with `error`; or are refused with `refusal`."""

    error: BaseException | None = None
    refusal: Exception | None = None

    def stage(self, block_ids: object, view: object, after: object, on_done: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        on_done(self.error)


@dataclass
class FakeArchive:
    """Uploads end at once with `fate`."""

    fate: SaveFate = SaveFate.UPLOADED
    error: Exception | None = None
    refused: str = ""
    saved: list[ChunkAddress] = field(default_factory=list)

    def save(
        self, address: ChunkAddress, slot: Any, give_back: Any, on_done: Any, *, rewrite: bool
    ) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append(address)
        give_back(slot)
        on_done(self.fate, "why")


@dataclass
class Bench:
    pool: SlotPool
    loop: NowLoop
    copier: FakeCopier
    archive: FakeArchive
    outbox: Outbox
    saver: Saver

    def save(self, job_id: int = 1) -> None:
        names = tuple(chain_of(4))
        job = SaveJob(job_id, NS, ChunkAddress(names[-1], ZERO_HASH, names), (1, 2, 3, 4), False)
        self.saver.stage(self.archive, job, None)  # type: ignore[arg-type]

    def report(self) -> tuple[dict[int, int], dict[int, int], dict[int, str]]:
        """(staged, saved, unsaved) since the last."""
        report = self.outbox.take_report()
        assert report is not None
        return report.staged, report.saved, report.unsaved

    @property
    def is_whole(self) -> bool:
        return self.pool.free_count == self.pool.slot_count


@pytest.fixture
def bench() -> Iterator[Bench]:
    pool = SlotPool(GEOMETRY.slot_bytes, 3)
    loop, copier, outbox = NowLoop(), FakeCopier(), Outbox()
    staging = Staging(GEOMETRY, pool, copier)  # type: ignore[arg-type]
    saver = Saver(staging, loop, outbox)  # type: ignore[arg-type]
    yield Bench(pool, loop, copier, FakeArchive(), outbox, saver)
    pool.close()


def test_a_save_is_staged_and_then_durable(bench: Bench) -> None:
    bench.saver.judge("")
    bench.save()
    assert bench.report() == ({1: 1}, {1: 1}, {})
    assert bench.is_whole


def test_nothing_is_uploaded_before_the_store_has_shown_what_it_can_do(bench: Bench) -> None:
    bench.save()
    assert bench.report() == ({1: 1}, {}, {})
    assert bench.archive.saved == []
    assert not bench.is_whole, "the save waits in its slot"
    bench.saver.judge("")
    assert bench.report() == ({}, {1: 1}, {})
    assert len(bench.archive.saved) == 1
    assert bench.is_whole


def test_what_waited_for_a_store_that_cannot_be_written_is_given_up(bench: Bench) -> None:
    bench.save(1)
    bench.saver.judge("the store refuses writes")
    assert bench.report() == ({1: 1}, {}, {1: "not_writable"})
    bench.save(2)
    assert bench.report() == ({2: 1}, {}, {2: "not_writable"})
    assert bench.archive.saved == []
    assert bench.is_whole


def test_saves_that_wait_at_the_end_are_counted_as_lost(bench: Bench) -> None:
    bench.save(1)
    bench.save(2)
    assert bench.saver.give_up() == 2
    assert bench.report() == ({1: 1, 2: 1}, {}, {1: "store_unknown", 2: "store_unknown"})
    assert bench.saver.give_up() == 0
    assert bench.is_whole


def test_without_a_slot_a_save_is_dropped_and_its_blocks_are_free(bench: Bench) -> None:
    for job_id in (1, 2, 3):
        bench.save(job_id)
    staged, _, unsaved = bench.report()
    assert staged == {1: 1, 2: 1, 3: 1}
    assert unsaved == {3: "pool_full"}, "saves leave one slot to loads"


@pytest.mark.parametrize("what", ["copy_failed", "loop_gone", "closed", "refused", "error", "late"])
def test_every_other_end_gives_the_slot_back_and_says_why(bench: Bench, what: str) -> None:
    bench.saver.judge("")
    word = what
    match what:
        case "copy_failed":
            bench.copier.error = RuntimeError("device")
        case "loop_gone":
            bench.loop.alive, word = False, "copy_failed"
        case "closed":
            bench.copier.refusal = Closed("copier is closed")
        case "refused":
            bench.archive.refused, word = "another namespace", "not_writable"
        case "error":
            bench.archive.error = RuntimeError("ours")
        case "late":
            bench.archive.fate, word = SaveFate.TOO_SLOW, "too_slow"
    bench.save()
    assert bench.report() == ({1: 1}, {}, {1: word})
    assert bench.is_whole
