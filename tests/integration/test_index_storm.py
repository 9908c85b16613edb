"""Many processes on one bucket, killed at random: nothing that was promised is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.storm_spec import SHORT_TIMES, StormSpec, Times
from tests.integration.storm import Fleet, storm, storm_s
from tests.integration.storm_audit import look, sweep_until_clean
from tests.integration.storm_verdict import Verdict, report

DURATION_S = storm_s()
SEED = 11

pytestmark = [
    pytest.mark.timeout(4 * DURATION_S + 300),
    pytest.mark.usefixtures("aws_environment"),
]

WORDS = ("stored", "hit", "tick", "harm", "lost")
"""A storm without any of them proves nothing."""
WITH_SWEEPERS = Fleet(sweepers=2)


def spec_for(server: str, endpoint_url: str, uri: str, times: Times) -> StormSpec:
    """A storm as fierce as the server bears: moto is one Python process."""
    pace = 3.0 if server == "moto" else 1.0
    return StormSpec(
        endpoint_url=endpoint_url,
        uri=uri,
        times=times,
        fragile_count=round(DURATION_S) + 5,  # one is harmed a second: some are left at the end
        save_pause_s=0.5 * pace,
        load_pause_s=0.25 * pace,
    )


@pytest.mark.parametrize("server", ["seaweed", "moto"])
def test_processes_killed_at_random_lose_nothing_and_leave_nothing(
    server: str, request: pytest.FixtureRequest, fresh_uri: str, tmp_path: Path
) -> None:
    endpoint_url = request.getfixturevalue(f"{server}_endpoint")
    endure(spec_for(server, endpoint_url, fresh_uri, Times()), tmp_path, SEED, Fleet())


@pytest.mark.parametrize("server", ["seaweed", "moto"])
def test_sweepers_and_compaction_in_the_midst_of_it_change_nothing(
    server: str, request: pytest.FixtureRequest, fresh_uri: str, tmp_path: Path
) -> None:
    endpoint_url = request.getfixturevalue(f"{server}_endpoint")
    spec = spec_for(server, endpoint_url, fresh_uri, SHORT_TIMES)

    endure(spec, tmp_path, SEED, WITH_SWEEPERS)


def endure(spec: StormSpec, folder: Path, seed: int, fleet: Fleet) -> None:
    """One storm, and everything that must hold in it and after it."""
    with storm(spec, folder, seed, fleet) as gone:
        gone.blow(DURATION_S, WORDS if not fleet.sweepers else (*WORDS, "round", "merged"))
    verdict = Verdict(gone.events, spec.times)
    report(verdict, folder)
    harmed, stored = verdict.chunks("harm"), verdict.chunks("stored")

    assert verdict.said("wrong") == []
    assert verdict.hard_failures() == []
    assert verdict.passing_failures_are_few(), verdict.said("failed")

    assert verdict.chunks("dangling") <= harmed, "hits on what nobody deleted"
    assert verdict.forgotten() == [], "acknowledged, and not found by who came later"
    assert verdict.unaware() == []
    assert verdict.misled() == []
    assert verdict.overdue() == []

    left = look(spec)
    assert stored - left.live <= harmed | verdict.chunks("losing"), "acknowledged and lost"
    assert left.holes() <= harmed | left.torn, "listed, and not there"

    swept = sweep_until_clean(spec)
    assert swept.orphans() == set()
    assert swept.holes() <= swept.torn
    assert left.live - harmed <= swept.live, "swept what was live"


def test_a_process_that_ends_by_itself_fails_the_storm(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    spec = StormSpec(endpoint_url=moto_endpoint, uri=f"{fresh_uri}/x", chunk_count=0)
    fleet = Fleet(writers=1, readers=0, loaders=0, harms=0)
    with (
        pytest.raises(AssertionError, match="ended by itself"),
        storm(spec, tmp_path, seed=1, fleet=fleet) as gone,
    ):
        gone.blow(60.0)
