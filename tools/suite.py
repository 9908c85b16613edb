"""Run one test suite inside its time budget and leave no process behind.

    python tools/suite.py run NAME BUDGET_S [--resume] [--grace S] -- COMMAND ...
    python tools/suite.py summary NAME ...
    python tools/suite.py report FILE NAME ...

`run` streams the command's output, ends it when the budget is spent, then ends every process that
it left behind and counts that as a failure. Its outcome goes to `build/suites/NAME.json`. With
`--resume` a suite that already passed on exactly these sources is not run again. `summary` prints
the outcomes, `report` writes them as a Markdown page.

Linux only: orphans are adopted by this process (`PR_SET_CHILD_SUBREAPER`), whatever session or
process group they put themselves into.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = Path("build/suites")
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0  # what well-behaved children need to notice that their parent has gone
CLOSING = re.compile(r"\d+ (passed|failed|error|errors|skipped|deselected|xfailed)\b.* in [\d.]+s")
SOURCES = ("s3kv", "tests", "tools", "pyproject.toml", "Makefile")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one suite ended."""

    name: str
    passed: bool
    closing: str
    """pytest's closing line, or why there is none."""
    elapsed_s: float
    budget_s: float
    sources: str
    """Digest of everything that the suite depends on."""


def sources_digest(root: Path = ROOT) -> str:
    """SHA-256 over names and contents of the sources, 16 hex digits."""
    digest = hashlib.sha256()
    for top in SOURCES:
        base = root / top
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _children() -> list[int]:
    """Direct children of this process, adopted orphans included, zombies reaped first."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0:
            break
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(words).decode(errors="replace").strip()[:160]


def _end_leftovers(grace_s: float) -> list[str]:
    """Wait for orphans, then kill what is still there; returns the command lines of those."""
    deadline_s = time.monotonic() + grace_s
    while _children() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    killed = []
    # Killing a parent hands its children to us: repeat until nobody is left.
    while pids := _children():
        for pid in pids:
            killed.append(_command_line(pid))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return killed


def _stream(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[str, bool]:
    """Pass the output on until the command ends; its text, and whether it ended in time."""
    assert process.stdout is not None
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        # An orphan may hold the pipe open, so the end of the command counts, not the end of file.
        while process.poll() is None or selector.select(0):
            if time.monotonic() > deadline_s:
                return kept.decode(errors="replace"), False
            if selector.select(0.2):
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    process.wait()
                    break
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                kept += piece
    return kept.decode(errors="replace"), True


def _interrupt(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Let a command that is still running say where it was: pytest does so when interrupted."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        rest, _ = process.communicate(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        return
    sys.stdout.buffer.write(rest)
    sys.stdout.buffer.flush()


def _closing_line(text: str) -> str:
    found = [line.strip("= \n") for line in text.splitlines() if CLOSING.search(line)]
    return found[-1] if found else ""


def run(name: str, budget_s: float, grace_s: float, command: list[str]) -> Outcome:
    """Run the command; see the module's docstring."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Being told to stop must not skip the cleaning up below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        text, in_time = _stream(process, began_s + budget_s)
        code = process.returncode
    finally:
        _interrupt(process, grace_s)
        killed = _end_leftovers(grace_s)
    closing = _closing_line(text) or ("ok" if code == 0 else f"exit code {code}")
    if not in_time:
        closing = f"stopped: over its budget of {budget_s:.0f} s"
    elif killed:
        closing += f"; left behind: {'; '.join(killed)}"
    return Outcome(
        name=name,
        passed=in_time and code == 0 and not killed,
        closing=closing,
        elapsed_s=round(time.monotonic() - began_s, 1),
        budget_s=budget_s,
        sources=sources_digest(),
    )


def _load(name: str) -> Outcome | None:
    path = OUTCOMES / f"{name}.json"
    return Outcome(**json.loads(path.read_text("utf-8"))) if path.exists() else None


def _run_command(
    name: str, budget_s: float, grace_s: float, resume: str, command: list[str]
) -> int:
    before = _load(name)
    if resume and before and before.passed and before.sources == sources_digest():
        print(f"--- {name}: passed before on these sources")
        return 0
    print(f"--- {name} (budget {budget_s:.0f} s): {' '.join(command)}", flush=True)
    outcome = run(name, budget_s, grace_s, command)
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    (OUTCOMES / f"{name}.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n", "utf-8")
    verdict = "passed" if outcome.passed else "FAILED"
    print(f"--- {name} {verdict} in {outcome.elapsed_s:.0f} s: {outcome.closing}", flush=True)
    return 0 if outcome.passed else 1


def _summary(names: list[str]) -> int:
    for name in names:
        outcome = _load(name)
        if outcome is not None:
            verdict = "passed" if outcome.passed else "FAILED"
            print(f"{name:<18}{verdict}  {outcome.elapsed_s:6.1f} s  {outcome.closing}")
        else:
            print(f"{name:<18}not run")
    return 0


def _report(target: Path, names: list[str]) -> int:
    """Write the page; 1 if a suite is missing, failed, or ran on other sources."""
    outcomes = [(name, _load(name)) for name in names]
    digest = sources_digest()
    lines = [
        "# Last full test run",
        "",
        "Written by `make test-all`; do not edit.",
        "",
        f"Sources {digest}, Python {platform.python_version()}, {os.cpu_count()} CPUs.",
        "",
        "| suite | outcome | seconds | pytest said |",
        "|---|---|---|---|",
    ]
    good = True
    for name, outcome in outcomes:
        if outcome is None or outcome.sources != digest:
            lines.append(f"| {name} | not run on these sources | | |")
            good = False
            continue
        verdict = "passed" if outcome.passed else "**failed**"
        lines.append(f"| {name} | {verdict} | {outcome.elapsed_s:.0f} | {outcome.closing} |")
        good = good and outcome.passed
    target.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"wrote {target}")
    return 0 if good else 1


def main() -> int:
    """Command line as in the module's docstring."""
    parser = argparse.ArgumentParser(description="Run a test suite inside its budget.")
    commands = parser.add_subparsers(dest="action", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("name")
    runner.add_argument("budget_s", type=float)
    runner.add_argument("--resume", action="store_const", const="yes", default="")
    runner.add_argument("--grace", type=float, default=GRACE_S)
    runner.add_argument("command", nargs="+")
    summary = commands.add_parser("summary")
    summary.add_argument("names", nargs="+")
    report = commands.add_parser("report")
    report.add_argument("target", type=Path)
    report.add_argument("names", nargs="+")
    given = parser.parse_args()
    if given.action == "run":
        factor = float(os.environ.get("S3KV_BUDGET_FACTOR", "1"))
        budget_s = given.budget_s * factor
        return _run_command(given.name, budget_s, given.grace, given.resume, given.command)
    if given.action == "summary":
        return _summary(given.names)
    return _report(given.target, given.names)


if __name__ == "__main__":
    sys.exit(main())
