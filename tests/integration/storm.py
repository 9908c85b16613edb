"""Runs a storm of real processes on one namespace and hears what they say.

The processes are those of `tests.fakes.storm_roles`. A seeded dice says who is killed when, and
each may end at a request of its own (`tests.fakes.storm_store`); who dies is replaced at once.
Nothing is left behind, however the test ends. What it means is judged in `storm_verdict`.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from s3kv.cli.local_store import end_with_parent
from tests.fakes.storm_spec import Event, StormSpec, heard

ROOT = Path(__file__).resolve().parents[2]
NURSERY = (sys.executable, "-m", "tests.fakes.storm_nursery")
START_S = 120.0
"""For all processes together to open the index, and for what a storm is to contain: a bound, both
take a few seconds."""
END_S = 20.0
KILL_PAUSE_S = 0.7


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many processes of each kind."""

    writers: int = 8
    readers: int = 4
    loaders: int = 4
    harms: int = 2
    sweepers: int = 0

    def roles(self) -> list[str]:
        """One word per process."""
        return (
            ["writer"] * self.writers
            + ["reader"] * self.readers
            + ["loader"] * self.loaders
            + ["harm"] * self.harms
            + ["sweeper"] * self.sweepers
        )


@dataclass
class Storm:
    """A running storm. Owned by the test's thread, but for the queue."""

    spec: StormSpec
    fleet: Fleet
    seed: int
    log: Path
    events: list[Event] = field(default_factory=list)
    nursery_command: tuple[str, ...] = NURSERY

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._heard: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._alive: dict[str, str] = {}
        self._doomed: set[str] = set()
        self._lives = 0
        with self.log.open("wb") as log:
            self._nursery = subprocess.Popen(
                end_with_parent([*self.nursery_command, self.spec.text]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
            )
        self._listener = threading.Thread(target=self._listen, name="storm-listener")
        self._listener.start()

    # ----------------------------------------------------------------- the storm
    def blow(self, duration_s: float, until: Iterable[str] = ()) -> None:
        """Start the fleet, kill and replace as many as belong to such a time; then kill all.

        On a slow machine it takes longer: how many die is fixed, not when; and the last third of
        them only when somebody has said each of the words.
        """
        self._await(lambda event: event.what == "open")
        for role in self.fleet.roles():
            self._start(role)
        names = set(self._alive)
        self._await(lambda event: self._is_last_ready(event, names))
        kills = round(duration_s / KILL_PAUSE_S)
        for left in range(kills, 0, -1):
            if left == kills // 3:
                self._await_words(until)
            self._listen_for(self._dice.uniform(0.5, 1.5) * KILL_PAUSE_S)
            self._kill_one()
        self.end()

    def end(self) -> None:
        """Kill everybody at once, and hear what they said before. Idempotent."""
        assert self._nursery.stdin is not None
        self._doomed.update(self._alive)
        self._alive.clear()
        if not self._nursery.stdin.closed:
            self._nursery.stdin.close()
        try:
            self._nursery.wait(END_S)
        finally:
            self._nursery.kill()
            self._nursery.wait()
            # Everybody holds the pipe's other end: its end is theirs.
            self._listener.join(END_S)
        while self._take(0.0):
            pass

    def _is_last_ready(self, event: Event, waiting: set[str]) -> bool:
        if event.what == "ready":
            waiting.discard(event.who)
        return not waiting

    def _await_words(self, words: Iterable[str]) -> None:
        missing = set(words) - {event.what for event in self.events}

        def is_last(event: Event) -> bool:
            missing.discard(event.what)
            return not missing

        if missing:
            self._await(is_last)

    def _start(self, role: str) -> None:
        self._lives += 1
        name = f"{role}-{self._lives}"
        self._alive[name] = role
        self._command("start", role, name, self._dice.randrange(1 << 30))

    def _kill_one(self) -> None:
        name = self._dice.choice(list(self._alive))
        self._command("kill", name)
        self._replace(name)

    def _replace(self, name: str) -> None:
        self._doomed.add(name)
        self._start(self._alive.pop(name))

    def _command(self, *words: str | int) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(words).encode() + b"\n")
        self._nursery.stdin.flush()

    # ----------------------------------------------------------------- what they say
    def _listen(self) -> None:
        assert self._nursery.stdout is not None
        with self._nursery.stdout:
            for line in self._nursery.stdout:
                self._heard.put(heard(line))
        self._heard.put(None)

    def _await(self, is_it: Callable[[Event], bool]) -> None:
        end_s = time.monotonic() + START_S
        while True:
            event = self._take(max(0.0, end_s - time.monotonic()))
            assert event is not None, f"not within {START_S} s: {self._complaints()}"
            if is_it(event):
                return

    def _listen_for(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._take(left_s)

    def _take(self, timeout_s: float) -> Event | None:
        try:
            event = self._heard.get(timeout=timeout_s) if timeout_s else self._heard.get_nowait()
        except queue.Empty:
            return None
        if event is None:
            return None
        self.events.append(event)
        if event.what == "dies" and event.who in self._alive:
            self._replace(event.who)
        if event.what == "ended":
            died = event.who in self._doomed and event.count == signal.SIGKILL
            assert died, f"{event.who} ended by itself ({event.count}): {self._complaints()}"
        return event

    def _complaints(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:]


@contextmanager
def storm(spec: StormSpec, folder: Path, seed: int, fleet: Fleet | None = None) -> Iterator[Storm]:
    """A storm that has not begun yet."""
    running = Storm(spec, fleet or Fleet(), seed, folder / "storm.log")
    try:
        yield running
    finally:
        running.end()


def storm_s() -> float:
    """How long a storm lasts: S3KV_STORM_S, 15 s by default."""
    return float(os.environ.get("S3KV_STORM_S", "15"))
