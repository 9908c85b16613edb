"""The scheduler side across resets, refusals and lost chunks, without an engine."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.unit.connector_values import BLOCK, FailedChunk, LayoutHandshake, Plan, Report
from tests.unit.scheduler_bench import (
    CHUNK_ENDS,
    NOTHING,
    Bench,
    acknowledged,
    names,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.core import kv_cache_utils


@pytest.fixture(autouse=True)
def root_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A started engine has defined it."""
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"\0" * 32, raising=False)


# ------------------------------------------------------------------------- resets
def saved_before(bench: Bench) -> tuple[Any, Plan]:
    request = bench.request()
    bench.side.arrived(request)
    return request, bench.step(request)


def test_a_chunk_that_became_durable_is_present_for_the_next_request() -> None:
    bench = Bench()
    _, plan = saved_before(bench)
    bench.hear(Report(saved={job.job_id: 1 for job in plan.saves}))
    assert bench.archive.listed == list(CHUNK_ENDS)
    assert bench.side.matched(bench.request("next"), 0) == (14 * BLOCK, True)


def test_a_report_of_before_a_reset_marks_nothing_as_present() -> None:
    bench = Bench()
    _, plan = saved_before(bench)
    old = bench.archive
    bench.side.reset()
    assert old.closed
    new = bench.open("after")
    late = Report(
        opened={old.namespace.id: 1},
        staged={job.job_id: 1 for job in plan.saves},
        saved={job.job_id: 1 for job in plan.saves},
    )
    bench.hear(late)
    assert new.listed == []
    request = bench.request("next")
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.pool.held == set(), "their blocks are free all the same"
    ticket = bench.side._ship(()).ticket
    assert ticket is not None, "nobody opened the new namespace yet"
    assert ticket.document == new.namespace.document
    assert names(bench.step(request)) == list(CHUNK_ENDS), "and all is saved under the new name"


def test_a_report_of_before_a_reset_ends_no_save_of_after_it() -> None:
    bench = Bench()
    _, plan = saved_before(bench)
    bench.side.reset()
    bench.open("after")
    request = bench.request("next")
    bench.side.arrived(request)
    again = bench.step(request)
    assert not {j.job_id for j in again.saves} & {j.job_id for j in plan.saves}
    bench.hear(Report(unsaved={job.job_id: "closed" for job in plan.saves}))
    bench.hear(Report(saved={job.job_id: 1 for job in again.saves}))
    assert bench.archive.listed == list(CHUNK_ENDS)


def test_between_a_reset_and_the_new_namespace_nothing_is_loaded_or_saved() -> None:
    bench = Bench()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    request = bench.request()
    bench.side.reset()
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.step(request).saves == ()
    assert bench.miss_reason(request) == "no_namespace"


def test_after_a_reset_that_failed_the_archive_is_off() -> None:
    bench = Bench()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    bench.side.turn_off()
    request = bench.request()
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.step(request) == NOTHING
    assert bench.side._agreement.refusal


# ------------------------------------------------------------------------- tickets, lost chunks
def test_the_namespace_is_repeated_until_the_workers_opened_it() -> None:
    bench = Bench()
    for _ in range(2):
        ticket = bench.side.plan_fallback().ticket
        assert ticket is not None
        assert ticket.document == bench.archive.namespace.document
    bench.hear(acknowledged(bench))
    assert bench.side.plan_fallback() == NOTHING


def test_a_lost_chunk_is_forgotten_for_all_and_one_that_was_late_only_avoided() -> None:
    bench = Bench()
    bench.hear(acknowledged(bench))
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    lost, late = CHUNK_ENDS[1], CHUNK_ENDS[2]
    bench.hear(
        Report(
            failed=(
                FailedChunk(bench.archive.namespace.id, lost, 4, "missing", lost=True),
                FailedChunk(bench.archive.namespace.id, late, 4, "deadline", lost=False),
            )
        )
    )
    assert bench.side.plan_fallback().forgotten == ((lost, 4),)
    assert bench.archive.listed == [CHUNK_ENDS[0], CHUNK_ENDS[2], CHUNK_ENDS[3]]
    assert bench.side.matched(bench.request(), 0) == (4 * BLOCK, True)


def test_a_worker_s_refusal_in_a_report_keeps_the_archive_off() -> None:
    bench = Bench(opened=False)
    bench.hear(Report(layouts=(LayoutHandshake(None, None, "pages lie apart"),)))
    request = bench.request()
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.miss_reason(request) == "no_namespace"
    assert bench.side._agreement.refusal == "pages lie apart"


def test_a_load_that_failed_before_a_reset_says_nothing_about_the_new_namespace() -> None:
    bench = Bench()
    bench.hear(acknowledged(bench))
    before = bench.archive.namespace.id
    bench.side.reset()
    bench.open("after")
    bench.hear(acknowledged(bench))
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    failed = FailedChunk(before, CHUNK_ENDS[0], 4, "missing", lost=True)
    bench.hear(Report(failed=(failed,)))
    assert bench.side.plan_fallback().forgotten == ()
    assert bench.archive.listed == list(CHUNK_ENDS)
