"""The stated bounds and prices follow from the intervals that engines run with."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from s3kv.cli.bounds_view import POLLER_COUNT, bounds_document, default_pace
from s3kv.cli.doctor import pace_of
from s3kv.cli.findings import Finding
from s3kv.core.bounds import GET_USD, MONTH_S, PUT_USD, Pace, monthly_price, staleness
from s3kv.core.sequencer import SequencerSettings
from s3kv.runtime.index_client import IndexSettings

PACE = Pace(
    poll_interval_s=1.0,
    head_ttl_s=60.0,
    commit_interval_s=1.0,
    fold_busy_s=1.0,
    fold_idle_s=5.0,
    patience_s=2.0,
    patience_spread_s=2.0,
    recheck_min_s=0.5,
    inbox_check_s=60.0,
    request_s=0.1,
)

LATE = {
    "poll_interval_s": {"busy_typical", "busy_worst", "quiet_worst", "abandoned_worst", "paused"},
    "head_ttl_s": {"view"},
    "commit_interval_s": {"busy_typical", "busy_worst", "quiet_worst", "abandoned_worst"},
    "fold_busy_s": {"busy_typical", "busy_worst"},
    "fold_idle_s": {"quiet_worst"},
    "patience_s": {"quiet_worst", "abandoned_worst"},
    "patience_spread_s": {"quiet_worst", "abandoned_worst"},
    "recheck_min_s": {"quiet_worst", "abandoned_worst"},
    "inbox_check_s": {"abandoned_worst"},
    "request_s": {"busy_typical", "busy_worst", "quiet_worst", "abandoned_worst", "paused"},
}
DEAR = {
    "poll_interval_s": {"following"},
    "inbox_check_s": {"watching"},
    "commit_interval_s": {"committing"},
    "fold_idle_s": {"folding_idle"},
    "fold_busy_s": {"folding_busy"},
}


def short(name: str) -> str:
    return name.removesuffix("_s").removesuffix("_usd").replace("paused_worst", "paused")


def late(pace: Pace) -> dict[str, float]:
    figures = asdict(staleness(pace))
    return {short(name).replace("view_worst", "view"): value for name, value in figures.items()}


def dear(pace: Pace) -> dict[str, float]:
    return {short(name): value for name, value in asdict(monthly_price(pace, 2)).items()}


def test_the_figures_at_the_usual_pace() -> None:
    assert late(PACE) == pytest.approx(
        {
            "busy_typical": 3 / 2 + 5 * 0.1,
            "busy_worst": 1 + 1 + 1 + 5 * 0.1,
            "quiet_worst": 1 + (2 + 2) + 1 + 0.5 + 2 * 1 + 6 * 0.1,
            "abandoned_worst": 60 + 1 + (2 + 2) + 1 + 0.5 + 2 * 1 + 6 * 0.1,
            "paused": 1 + 2 * 0.1,
            "view": 60,
        }
    )
    assert dear(PACE) == pytest.approx(
        {
            "following": 2 * MONTH_S * GET_USD,
            "watching": MONTH_S / 60 * PUT_USD,
            "committing": MONTH_S * (PUT_USD + GET_USD),
            "folding_idle": MONTH_S / 5 * PUT_USD,
            "folding_busy": MONTH_S * 2 * PUT_USD,
        }
    )


@pytest.mark.parametrize("name", LATE)
def test_each_bound_grows_with_exactly_the_waits_that_are_in_it(name: str) -> None:
    before, after = late(PACE), late(replace(PACE, **{name: getattr(PACE, name) + 8.0}))

    assert all(after[figure] >= before[figure] for figure in before)
    assert {figure for figure in before if after[figure] > before[figure]} == LATE[name]


@pytest.mark.parametrize("name", LATE)
def test_each_price_falls_with_the_interval_that_it_is_paid_for(name: str) -> None:
    before, after = dear(PACE), dear(replace(PACE, **{name: getattr(PACE, name) * 2}))

    assert {figure for figure in before if after[figure] != before[figure]} == DEAR.get(name, set())
    for figure in DEAR.get(name, ()):
        assert after[figure] == pytest.approx(before[figure] / 2)


def test_every_process_that_follows_is_paid_for() -> None:
    one, three = monthly_price(PACE, 1), monthly_price(PACE, 3)

    assert three.following_usd == pytest.approx(3 * one.following_usd)
    assert replace(three, following_usd=0.0) == replace(one, following_usd=0.0)


def test_what_is_stated_is_what_engines_run_with() -> None:
    pace, index, sequencer = default_pace(), IndexSettings(), SequencerSettings()

    assert pace.poll_interval_s == index.poll_interval_s
    assert pace.head_ttl_s == index.head_ttl_s
    assert pace.commit_interval_s == sequencer.interval_min_ms / 1_000
    shared = set(asdict(pace)) & set(SequencerSettings.__dataclass_fields__)
    assert len(shared) == 6
    for name in shared:
        assert getattr(pace, name) == getattr(sequencer, name)
    assert pace == PACE


def test_every_bound_is_explained() -> None:
    document = bounds_document(PACE)

    states = {short(name).removesuffix("_worst").removesuffix("_typical") for name in late(PACE)}
    assert document["meaning"].keys() == states  # type: ignore[attr-defined]
    assert document["pace"]["pollers_per_engine"] == POLLER_COUNT == 2  # type: ignore[index]


@pytest.mark.parametrize(("measured_s", "used_s"), [(None, 0.1), (0.002, 0.1), (0.4, 0.4)])
def test_a_slow_store_makes_the_bounds_wider(measured_s: float | None, used_s: float) -> None:
    numbers = {} if measured_s is None else {"head_median_s": measured_s}
    findings = [
        Finding(check="clock", state="ok", says="", numbers={"skew_s": 9.0}),
        Finding(check="latency", state="ok", says="", numbers=numbers),
    ]

    assert pace_of(findings) == replace(PACE, request_s=used_s)
