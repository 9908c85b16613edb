"""Every copy reports once, after its bytes arrived; loads first; nothing is written unwanted."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import torch

from s3kv.device import selfcheck
from s3kv.device.copier import Copier, Outcome
from s3kv.device.paged import PagedGroup
from s3kv.errors import Closed
from tests.fakes.copier_bench import (
    BLOCK_BYTES,
    BLOCKS,
    LAYERS,
    PAGE,
    WAIT_S,
    BrokenFence,
    Gate,
    Reports,
    buffer_of,
    deliver,
    stage,
)


@pytest.fixture
def cache() -> torch.Tensor:
    """int8[BLOCKS, LAYERS, PAGE]; block b is filled with b."""
    filled = torch.arange(BLOCKS, dtype=torch.int8)[:, None, None]
    return filled.expand(BLOCKS, LAYERS, PAGE).contiguous()


@pytest.fixture
def copier(cache: torch.Tensor) -> Iterator[Copier]:
    tensors = {f"l{i}": cache[:, i] for i in range(LAYERS)}
    made = Copier(PagedGroup.from_tensors(tensors, PAGE, BLOCKS))
    yield made
    made.close(WAIT_S)


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_stage_reports_after_the_bytes_are_in_the_slot(copier: Copier) -> None:
    out = buffer_of(0xA5, block_count=2)
    seen: list[object] = []
    copier.stage([6, 3], out, copier.fence(), lambda error: seen.extend([error, out.tolist()]))
    assert copier.drain(WAIT_S)
    assert seen == [None, [6] * BLOCK_BYTES + [3] * BLOCK_BYTES]


def test_deliver_reports_after_the_bytes_are_in_the_cache(
    copier: Copier, cache: torch.Tensor
) -> None:
    seen: list[object] = []

    def on_done(outcome: Outcome) -> None:
        seen.extend([outcome, cache[5].unique().tolist()])

    copier.deliver([5], buffer_of(77), copier.fence(), lambda: True, on_done)
    assert copier.drain(WAIT_S)
    assert seen == [Outcome.WRITTEN, [77]]
    assert [block.unique().tolist() for block in cache] == [[0], [1], [2], [3], [4], [77], [6], [7]]


def test_slot_memory_may_be_given_as_a_memoryview(copier: Copier, cache: torch.Tensor) -> None:
    memory = bytearray(3 * BLOCK_BYTES)
    part = memoryview(memory)[BLOCK_BYTES : 2 * BLOCK_BYTES]
    copier.stage([4], part, None, lambda error: None)
    assert copier.drain(WAIT_S)
    assert memory == bytes(BLOCK_BYTES) + bytes([4]) * BLOCK_BYTES + bytes(BLOCK_BYTES)
    copier.deliver([1], part, None, lambda: True, lambda outcome: None)
    assert copier.drain(WAIT_S)
    assert (cache[1] == 4).all()


def test_reports_come_from_the_copy_thread(copier: Copier, reports: Reports) -> None:
    stage(copier, reports, "save")
    deliver(copier, reports, "load")
    assert copier.drain(WAIT_S)
    assert reports.threads == {"s3kv-copy"}


def test_a_delivery_no_longer_wanted_when_its_turn_comes_writes_nothing(
    copier: Copier, cache: torch.Tensor, reports: Reports
) -> None:
    gate = Gate()
    wanted = True
    copier.deliver(
        [2], buffer_of(77), gate, lambda: wanted, lambda outcome: reports.note("late", outcome)
    )
    assert gate.asked.wait(WAIT_S)
    wanted = False  # the deadline passes while the job is queued
    gate.opened.set()
    assert copier.drain(WAIT_S)
    assert reports.of("late") == [Outcome.SKIPPED]
    assert (cache[2] == 2).all()


def test_whether_it_is_wanted_is_asked_once_and_not_before_the_fence_has_passed(
    copier: Copier,
) -> None:
    gate = Gate()
    asked: list[bool] = []

    def still_wanted() -> bool:
        asked.append(gate.opened.is_set())
        return True

    copier.deliver([2], buffer_of(1), gate, still_wanted, lambda outcome: None)
    assert gate.asked.wait(WAIT_S)
    gate.opened.set()
    assert copier.drain(WAIT_S)
    assert asked == [True]


def test_nothing_is_copied_before_the_fence_has_passed(
    copier: Copier, cache: torch.Tensor, reports: Reports
) -> None:
    gate = Gate()
    out = stage(copier, reports, "save", block=3, after=gate)
    assert gate.asked.wait(WAIT_S)
    assert reports.heard == []
    cache[3] = 42  # the forward pass writes the block
    gate.opened.set()
    assert copier.drain(WAIT_S)
    assert (out == 42).all()


def test_loads_go_before_saves_and_each_kind_in_order(copier: Copier, reports: Reports) -> None:
    gate = Gate()
    stage(copier, reports, "first", after=gate)
    for name in ("s1", "s2"):
        stage(copier, reports, name)
    for name in ("l1", "l2"):
        deliver(copier, reports, name, after=gate)
    gate.opened.set()
    assert copier.drain(WAIT_S)
    order = [name for name, _ in reports.heard]
    assert order.index("l1") < order.index("l2")
    assert order.index("first") < order.index("s1") < order.index("s2")


def test_queued_loads_overtake_queued_saves(copier: Copier, reports: Reports) -> None:
    running, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        running.set()
        go_on.wait(WAIT_S)

    copier.stage([0], buffer_of(0), None, hold)
    assert running.wait(WAIT_S)
    stage(copier, reports, "save")
    deliver(copier, reports, "load")
    go_on.set()
    assert copier.drain(WAIT_S)
    assert [name for name, _ in reports.heard] == ["load", "save"]


def test_a_save_waiting_for_its_forward_pass_does_not_hold_up_a_load(
    copier: Copier, reports: Reports
) -> None:
    gate = Gate()
    stage(copier, reports, "save", after=gate)
    assert gate.asked.wait(WAIT_S)
    loaded = threading.Event()
    copier.deliver([1], buffer_of(7), None, lambda: True, lambda outcome: loaded.set())
    assert loaded.wait(WAIT_S)
    assert reports.heard == []
    gate.opened.set()
    assert copier.drain(WAIT_S)
    assert reports.of("save") == [None]


def test_a_copy_that_fails_reports_and_the_next_one_works(copier: Copier, reports: Reports) -> None:
    copier.stage([0], buffer_of(0, 2), None, lambda error: reports.note("size", error))
    copier.deliver(
        [BLOCKS], buffer_of(0), None, lambda: True, lambda outcome: reports.note("id", outcome)
    )
    stage(copier, reports, "good")
    assert copier.drain(WAIT_S)
    assert isinstance(reports.of("size")[0], ValueError)
    assert reports.of("id") == [Outcome.FAILED]
    assert reports.of("good") == [None]


def test_a_caller_that_fails_in_its_report_does_not_stop_the_thread(
    copier: Copier, reports: Reports
) -> None:
    def fail(_: object) -> None:
        raise LookupError("caller's fault")

    copier.stage([0], buffer_of(0), None, fail)
    copier.deliver([0], buffer_of(0), None, lambda: bool(1 // 0), lambda o: reports.note("a", o))
    stage(copier, reports, "b")
    assert copier.drain(WAIT_S)
    assert reports.of("a") == [Outcome.FAILED]
    assert reports.of("b") == [None]


def test_a_fence_of_a_broken_device_ends_the_wait(copier: Copier, reports: Reports) -> None:
    copier.stage([0], buffer_of(0), BrokenFence(), lambda error: reports.note("save", error))
    assert copier.drain(WAIT_S)
    assert len(reports.of("save")) == 1


def test_closing_lets_queued_copies_finish(copier: Copier, reports: Reports) -> None:
    names = [f"s{i}" for i in range(20)]
    for name in names:
        stage(copier, reports, name)
    assert copier.close(WAIT_S) == 0
    assert reports.heard == [(name, None) for name in names]


def test_closing_drops_what_cannot_finish_in_time_and_reports_each_once(
    copier: Copier, cache: torch.Tensor, reports: Reports
) -> None:
    never = Gate()
    stage(copier, reports, "s1", after=never)
    stage(copier, reports, "s2")
    deliver(copier, reports, "l1", block=4, after=never)
    assert copier.close(0.05) == 3
    assert copier.close(0.05) == 0
    assert [type(what) for what in reports.of("s1") + reports.of("s2")] == [Closed, Closed]
    assert reports.of("l1") == [Outcome.SKIPPED]
    assert len(reports.heard) == 3
    assert (cache[4] == 4).all()
    assert "s3kv-copy" not in {thread.name for thread in threading.enumerate()}


def test_a_copy_under_way_when_closing_gives_up_still_reports_once(
    copier: Copier, reports: Reports
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def still_wanted() -> bool:
        running.set()
        return go_on.wait(WAIT_S)

    copier.deliver([1], buffer_of(9), None, still_wanted, lambda o: reports.note("slow", o))
    assert running.wait(WAIT_S)
    stage(copier, reports, "queued")
    assert copier.close(0.05) == 1
    assert [name for name, _ in reports.heard] == ["queued"]
    go_on.set()
    assert copier.drain(WAIT_S)
    assert reports.of("slow") == [Outcome.WRITTEN]


def test_a_closed_copier_takes_no_jobs(copier: Copier, reports: Reports) -> None:
    copier.close(WAIT_S)
    with pytest.raises(Closed):
        stage(copier, reports, "save")
    with pytest.raises(Closed):
        deliver(copier, reports, "load")
    assert reports.heard == []


def test_draining_gives_up_in_time(copier: Copier, reports: Reports) -> None:
    gate = Gate()
    stage(copier, reports, "save", after=gate)
    assert not copier.drain(0.02)
    assert copier.pending_count == 1
    gate.opened.set()
    assert copier.drain(WAIT_S)
    assert copier.pending_count == 0


def test_draining_waits_for_the_last_report_to_return(copier: Copier) -> None:
    reporting, go_on = threading.Event(), threading.Event()

    def slow_report(_: object) -> None:
        reporting.set()
        go_on.wait(WAIT_S)

    copier.stage([0], buffer_of(0), None, slow_report)
    assert reporting.wait(WAIT_S)
    assert not copier.drain(0.02)
    go_on.set()
    assert copier.drain(WAIT_S)


def test_an_idle_copier_holds_no_slot(copier: Copier, reports: Reports) -> None:
    out = weakref.ref(stage(copier, reports, "save"))
    assert copier.drain(WAIT_S)
    gc.collect()
    assert out() is None


def test_on_the_cpu_there_is_no_fence(copier: Copier) -> None:
    assert copier.fence() is None


def test_many_threads_get_their_own_bytes_back(copier: Copier, cache: torch.Tensor) -> None:
    wrong: list[str] = []

    def work(block: int) -> None:
        for turn in range(50):
            value = (block * 50 + turn) % 251
            out = buffer_of(0xA5)
            written: Future[Outcome] = Future()
            copier.deliver([block], buffer_of(value), None, lambda: True, written.set_result)
            staged: Future[BaseException | None] = Future()
            if written.result(WAIT_S) is Outcome.WRITTEN:
                copier.stage([block], out, None, staged.set_result)
            if staged.result(WAIT_S) is not None or not (out == value).all():
                wrong.append(f"block {block} turn {turn}")

    threads = [threading.Thread(target=work, args=(block,)) for block in range(BLOCKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_selfcheck_passes_here_and_reports_every_layout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["--shard-mib", "1", "--layers", "4", "--rounds", "1"]
    assert selfcheck.main(["--json", "--device", "cpu", *sizes]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert {case["layout"] for case in document["cases"]} == {
        layout.value for layout in selfcheck.CacheLayout
    }
    assert all(case["stage_gib_s"] > 0 and case["problems"] == [] for case in document["cases"])
