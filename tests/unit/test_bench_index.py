"""The benchmark of the index measures what it says; how fast is for it to find out."""

from __future__ import annotations

import json

import pytest

from s3kv.bucket.memory import MemoryStore
from s3kv.cli.bounds_view import POLLER_COUNT, default_pace
from s3kv.core.bounds import MONTH_S, monthly_price
from s3kv.core.records import RECORDS_MAX
from tests.simulation.fleet import HOUR_S, busy_bill, idle_bill
from tools import index_figures as figures
from tools.bench_index import Document, FleetSize, fleet, in_memory, opened, verdicts

BLOCKS = 10_000
CHUNKS = BLOCKS // 16


def test_figures_of_a_small_archive_are_whole_and_plausible() -> None:
    document = json.loads(json.dumps(in_memory(BLOCKS, 5)))

    memory, lookups, merge = document["memory"], document["lookup"], document["merge"]
    assert memory["chunks"] == CHUNKS
    assert 12.125 < memory["bytes_per_chunk"] < 13.5
    for by_memtable in lookups.values():
        for found in by_memtable.values():
            assert 0 < found["cpu_p50_us"] <= found["cpu_p99_us"]
            assert 0.1 < found["hit_share"] < 0.9, "hits and misses are mixed"
    assert lookups.keys() == {"32", "512"}
    assert merge["news"] == RECORDS_MAX
    assert merge["merge_ms"] > 0
    assert merge["longest_stall_ms"] > 0


async def test_what_was_written_as_runs_is_what_is_opened() -> None:
    store = MemoryStore()

    found = await opened(store, BLOCKS)

    assert found["chunks"] == CHUNKS
    assert len(store.objects) == len(figures.RUN_SHARES)
    header_bytes = found["file_bytes"] - 16 * CHUNKS
    assert 0 < header_bytes < 1_000 * len(store.objects)


def test_an_idle_engine_costs_what_the_closed_form_says() -> None:
    bill = idle_bill(1, 600.0)

    assert bill.counts == {"get": 600 * POLLER_COUNT, "list": 600 // 5}
    price = monthly_price(default_pace(), POLLER_COUNT)
    expected_usd = price.following_usd + price.folding_idle_usd
    assert bill.usd_per_hour * MONTH_S / HOUR_S == pytest.approx(expected_usd)


def test_an_idle_fleet_follows_and_watches_and_one_of_it_folds() -> None:
    bill = idle_bill(5, 600.0)

    assert bill.counts["get"] == pytest.approx(5 * 600 * POLLER_COUNT, rel=0.01)
    assert bill.counts["list"] == pytest.approx(600 // 5 + 4 * 600 // 60, abs=4)
    assert bill.counts.keys() == {"get", "list"}


def test_readers_beyond_the_sample_are_counted_like_the_others() -> None:
    bill = idle_bill(50, 20.0)

    assert bill.counts["get"] == pytest.approx(50 * 20 * POLLER_COUNT, rel=0.01)


def test_a_busy_fleet_commits_once_a_second_and_engine() -> None:
    bill = busy_bill(3, 60.0)

    ticks = 60
    segments = 2 * 60
    assert bill.counts["put"] == pytest.approx(ticks + segments, rel=0.05)
    assert bill.counts["delete"] == pytest.approx(ticks, rel=0.05)


def test_a_dedicated_sequencer_leads_and_nobody_else_makes_ticks() -> None:
    document = fleet(FleetSize(2, True, 30.0, 30.0, (10.0, 100.0)))

    assert document["dedicated_sequencer"] is True
    busy = document["busy"]
    assert isinstance(busy, dict)
    counts = busy["requests_per_hour"]
    assert counts["put"] == pytest.approx(3 * 3_600, rel=0.1), "two engines' segments, and ticks"
    assert busy["times_design"] == pytest.approx(busy["usd_per_month"] / 100.0, abs=0.01)


def test_goals_say_by_how_much_they_are_reached_or_missed() -> None:
    archive: Document = {
        "lookup": {"32": {"full_memtable": {"p99_us": 300.0, "cpu_p99_us": 99.0}}},
        "memory": {"bytes_per_chunk": 10.0},
        "open": {"open_s": 7.5},
        "merge": {"longest_stall_ms": 20},
    }

    given = verdicts(archive)

    assert given[0]["measured_in_processor_time"] == 99.0
    assert {str(each["goal"]).split(":")[0]: each["verdict"] for each in given} == {
        "look-up of 32 chunks, p99": "missed by 50%",
        "memory": "reached, 20% below",
        "open from a local store": "missed by 50%",
        "stall of another thread beside a merge": "reached, 0% below",
    }
