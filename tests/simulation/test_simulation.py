"""The index protocol in a world where everything goes wrong, and proof that the world is harsh.

`S3KV_SIM_SEEDS` is the number of seeds (100 by default). A failing seed can be repeated alone:
`simulate(seed)` always gives the same run.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.actors import simulate

SEEDS = int(os.environ.get("S3KV_SIM_SEEDS", "100"))
BATCH = 10
HARSH_SEEDS = 40
MUTANT_SEEDS = 60
"""Bound for the search; every mutant is caught within a few."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_fault_breaks_an_invariant(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, min(first + BATCH, SEEDS)):
        world = simulate(seed)
        assert world.errors == [], f"seed {seed}"
        counts.update(world.counts)

    for event in ("crashes", "lost", "loads", "stored", "ticks"):
        assert counts[event] > 0, f"a world without {event} proves nothing"


def test_the_worlds_know_sweeping_and_cleaning_up() -> None:
    counts: Counter[str] = Counter()
    for seed in range(HARSH_SEEDS):
        counts.update(simulate(seed).counts)

    for event in ("swept", "cleaned_up"):
        assert counts[event] > 0, f"worlds without {event} prove nothing"


def test_a_sleeper_is_not_led_astray_by_another_sleeper_s_tick() -> None:
    """Found by the simulation: a cleaned-up slot, filled again after a long sleep."""
    assert simulate(421).errors == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fault",
    [
        "announce_first",
        "delete_first",
        "trust_404",
        "no_deadline",
        "no_margin",
        "no_conditional_put",
    ],
)
def test_a_protocol_without_one_of_its_rules_is_caught(fault: str) -> None:
    assert any(simulate(seed, frozenset([fault])).errors for seed in range(MUTANT_SEEDS))


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = simulate(3), simulate(3), simulate(4)

    assert first.trace == second.trace
    assert first.counts == second.counts
    assert first.trace != other.trace
