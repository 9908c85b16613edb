"""The suite runner keeps its budget and leaves no process behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "tools" / "suite.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopting orphans is Linux only")


def _run(folder: Path, budget_s: str, script: str) -> tuple[int, dict[str, object]]:
    ran = subprocess.run(
        [
            sys.executable,
            str(RUNNER),
            "run",
            "x",
            budget_s,
            "--grace",
            "0.2",
            "--",
            "bash",
            "-c",
            script,
        ],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    outcome: dict[str, object] = json.loads((folder / "build/suites/x.json").read_text())
    return ran.returncode, outcome


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_clean_suite_passes_with_its_closing_line(tmp_path: Path) -> None:
    code, outcome = _run(tmp_path, "60", "echo '=== 3 passed in 0.10s ==='")
    assert code == 0
    assert outcome["passed"] is True
    assert outcome["closing"] == "3 passed in 0.10s"


def test_a_failing_suite_fails(tmp_path: Path) -> None:
    code, outcome = _run(tmp_path, "60", "echo '1 failed, 2 passed in 0.10s'; exit 1")
    assert code == 1
    assert outcome["passed"] is False


def test_a_daemon_that_a_suite_left_is_ended_and_fails_the_suite(tmp_path: Path) -> None:
    script = "setsid sleep 600 & echo $! > pid; echo '1 passed in 0.10s'"
    code, outcome = _run(tmp_path, "60", script)
    assert code == 1
    assert "left behind: sleep 600" in str(outcome["closing"])
    assert not _alive(int((tmp_path / "pid").read_text()))


def test_a_suite_over_its_budget_is_ended_with_all_its_children(tmp_path: Path) -> None:
    code, outcome = _run(tmp_path, "0.5", "sleep 600 & echo $! > pid; wait")
    assert code == 1
    assert "over its budget" in str(outcome["closing"])
    assert not _alive(int((tmp_path / "pid").read_text()))
