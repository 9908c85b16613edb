"""The scheduler side without an engine: pauses, promises, requests that end early."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

from s3kv.core.snapshot import Pause
from tests.unit.connector_values import BLOCK, Report
from tests.unit.scheduler_bench import (
    CHUNK_ENDS,
    NOTHING,
    TABLE,
    TOKENS,
    Bench,
    blocks,
    names,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.core import kv_cache_utils


@pytest.fixture(autouse=True)
def root_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A started engine has defined it."""
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"\0" * 32, raising=False)


# ------------------------------------------------------------------------- pauses
def test_final_chunks_are_listed_for_saving() -> None:
    bench, request = Bench(), Bench().request()
    bench.side.arrived(request)
    assert names(bench.step(request)) == list(CHUNK_ENDS)
    assert bench.pool.held == set(TABLE[:14])


def test_a_fleet_whose_saves_are_paused_saves_nothing_and_pins_nothing() -> None:
    bench = Bench(pause=Pause(saves=True))
    request = bench.request()
    bench.side.arrived(request)
    assert bench.step(request).saves == ()
    assert bench.pool.held == set()


def test_what_became_final_during_a_pause_is_saved_after_it_while_its_request_runs() -> None:
    bench = Bench(pause=Pause(saves=True))
    request = bench.request()
    bench.side.arrived(request)
    assert bench.step(request, 8 * BLOCK).saves == ()
    bench.open("before")
    assert names(bench.step(request, TOKENS - 8 * BLOCK)) == list(CHUNK_ENDS)


def test_paused_saves_do_not_stop_loads() -> None:
    bench = Bench(pause=Pause(saves=True))
    bench.archive.note([(name, 4) for name in CHUNK_ENDS[:2]], dead=False)
    assert bench.side.matched(bench.request(), 0) == (8 * BLOCK, True)


def test_a_fleet_whose_loads_are_paused_misses_and_says_so_to_the_client() -> None:
    bench = Bench(pause=Pause(loads=True))
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    request = bench.request()
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.miss_reason(request) == "paused"


def test_paused_loads_do_not_stop_saves() -> None:
    bench = Bench(pause=Pause(loads=True))
    request = bench.request()
    bench.side.matched(request, 0)
    assert names(bench.step(request)) == list(CHUNK_ENDS)


# ------------------------------------------------------------------------- not saving
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        pytest.param({"save": "nothing"}, {}, id="save is off"),
        pytest.param({}, {"kv_transfer_params": {"s3kv": {"save": False}}}, id="not wanted"),
        pytest.param({}, {"kv_transfer_params": {"s3kv": {"sav": 1}}}, id="bad options"),
        pytest.param({}, {"lora_request": object()}, id="adapter"),
    ],
)
def test_what_must_not_be_saved_is_not_listed(
    options: dict[str, Any], fields: dict[str, Any]
) -> None:
    bench = Bench(**options)
    request = bench.request(**fields)
    bench.side.arrived(request)
    assert bench.step(request).saves == ()


def test_a_store_that_cannot_be_written_ends_saving_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    bench, request = Bench(), Bench().request()
    bench.side.arrived(request)
    for _ in range(2):
        bench.hear(Report(read_only="policy says no"))
    assert bench.step(request).saves == ()
    assert [r.getMessage().count("policy says no") for r in caplog.records] == [1]


# ------------------------------------------------------------------------- the end of requests
def test_a_request_that_ends_twice_is_reported_once() -> None:
    bench, request = Bench(), Bench().request()
    bench.side.matched(request, 0)
    assert bench.side.finished(request) == {
        "s3kv": {"hit_tokens": 0, "load_s": 0.0, "miss_reason": "absent"}
    }
    assert bench.side.finished(request) is None


def test_every_ended_request_is_counted_once_and_a_miss_by_its_reason() -> None:
    bench, request = Bench(), Bench().request()
    bench.side.matched(request, 0)
    bench.side.finished(request)
    bench.side.finished(request)
    bench.archive.note([(name, 4) for name in CHUNK_ENDS[:1]], dead=True)
    again = bench.request("again")
    bench.side.matched(again, 0)
    bench.side.finished(again)
    totals = bench.side._totals
    assert (totals.count, totals.misses) == (2, {"absent": 1, "lost": 1})


def test_a_request_that_ends_before_its_first_lookup_says_so() -> None:
    bench, request = Bench(opened=False), Bench().request()
    bench.side.arrived(request)
    assert bench.miss_reason(request) == "not_looked_up"


def test_a_request_that_the_side_never_heard_of_may_end() -> None:
    bench, request = Bench(), Bench().request()
    assert bench.side.finished(request) is None
    bench.side.forget(request)
    assert bench.step(request).saves == ()


def test_the_report_of_a_load_after_its_request_s_end_is_taken_quietly() -> None:
    bench, request = Bench(), Bench().request()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS[:2]], dead=False)
    bench.side.matched(request, 0)
    bench.side.allocated(request, blocks(8), 8 * BLOCK)
    assert len(bench.step(request, 0).loads) == 1
    bench.side.finished(request)
    assert bench.side._ship(()).ended == {"r"}
    bench.hear(Report(load_s={"r": 0.5}), received=["r"], bad=TABLE[:8])
    assert bench.side._loads.in_flight_count == 0


# ------------------------------------------------------------------------- promises
def test_a_promise_becomes_one_load_of_exactly_its_blocks() -> None:
    bench, request = Bench(), Bench().request()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    assert bench.side.matched(request, 2 * BLOCK) == (12 * BLOCK, True)
    bench.side.allocated(request, blocks(), 12 * BLOCK)
    (job,) = bench.step(request, 0).loads
    assert job.namespace == bench.archive.namespace.id
    assert job.block_ids == tuple(TABLE[2:14])
    assert bench.step(request, 0).loads == ()


@pytest.mark.parametrize("promised", [True, False])
def test_a_promise_that_does_not_fit_is_reported_as_failed_not_kept_open(promised: bool) -> None:
    bench, request = Bench(), Bench().request()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS], dead=False)
    if promised:
        assert bench.side.matched(request, 0) == (14 * BLOCK, True)
    bench.side.allocated(request, blocks(), 5 * BLOCK)
    plan = bench.step(request, 0)
    assert plan.loads == ()
    assert [a.block_ids for a in plan.abandoned] == [tuple(TABLE[9:14])]


def test_what_a_load_delivered_and_what_not_is_told_to_the_client() -> None:
    bench, request = Bench(), Bench().request()
    bench.archive.note([(name, 4) for name in CHUNK_ENDS[:2]], dead=False)
    bench.side.matched(request, 0)
    bench.side.allocated(request, blocks(8), 8 * BLOCK)
    bench.hear(Report(load_s={"r": 0.25}), received=["r"], bad=[TABLE[5]])
    assert bench.side.finished(request) == {
        "s3kv": {"hit_tokens": 5 * BLOCK, "load_s": 0.25, "miss_reason": "load_failed"}
    }


def test_before_the_namespace_is_agreed_every_lookup_is_a_miss() -> None:
    bench, request = Bench(opened=False), Bench().request()
    bench.side.arrived(request)
    assert bench.side.matched(request, 0) == (0, False)
    assert bench.step(request) == NOTHING
    assert bench.miss_reason(request) == "no_namespace"


def test_an_engine_that_is_not_served_is_left_alone() -> None:
    bench, request = Bench(refusal="two groups"), Bench().request()
    bench.side.arrived(request)
    assert bench.side.matched(request, 0) == (0, False)
    bench.side.allocated(request, blocks(), 0)
    assert bench.side.finished(request) is None
