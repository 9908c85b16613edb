"""The index protocol in a world where everything goes wrong, and proof that the world is harsh.

`S3KV_SIM_SEEDS` is the number of seeds (100 by default). A failing seed can be repeated alone:
`simulate(seed)` always gives the same run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.actors import outcome_of, simulate

SEEDS = int(os.environ.get("S3KV_SIM_SEEDS", "100"))
BATCH = 20
HARSH_SEEDS = 40
MUTANT_SEEDS = 60
"""Bound for the search; every mutant is caught within a few."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Worlds need nothing of each other: one process per core."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as opened:
        yield opened


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_fault_breaks_an_invariant(first: int, pool: ProcessPoolExecutor) -> None:
    seeds = range(first, min(first + BATCH, SEEDS))
    outcomes = list(pool.map(outcome_of, seeds))
    assert {seed: errors for seed, errors, _ in outcomes if errors} == {}

    counts = sum((events for _, _, events in outcomes), Counter[str]())
    for event in ("crashes", "lost", "loads", "stored", "ticks"):
        assert counts[event] > 0, f"a world without {event} proves nothing"


def test_the_worlds_know_sweeping_and_cleaning_up() -> None:
    counts: Counter[str] = Counter()
    for seed in range(HARSH_SEEDS):
        counts.update(simulate(seed).counts)

    for event in ("deleted", "renewed", "runs", "cleaned_up", "late"):
        assert counts[event] > 0, f"worlds without {event} prove nothing"


@pytest.mark.parametrize("seed", [421, 626, 1575])
def test_worlds_that_broke_an_earlier_protocol_end_well(seed: int) -> None:
    """421: a cleaned-up slot, filled again after a sleep. 626: a use on an old view of what was
    being swept. 1575: a chunk adopted by one sweep and condemned by another."""
    assert simulate(seed).errors == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fault", ["announce_first", "delete_first", "trust_404", "no_conditional_put", "no_pins"]
)
def test_a_protocol_without_one_of_its_rules_is_caught(fault: str) -> None:
    """Rules that are needed all the time; `test_rules` has the others."""
    assert any(simulate(seed, frozenset([fault])).errors for seed in range(MUTANT_SEEDS))


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = simulate(3), simulate(3), simulate(4)

    assert first.trace == second.trace
    assert first.counts == second.counts
    assert first.trace != other.trace
