"""What the words of a storm's processes prove, and how late may be late.

Exact, whatever the machine's speed: who opens the index lists all that was acknowledged before it
began, and nothing that was reported lost before; who has read a tick that was folded after a report
does not list what was reported. By the clock: nobody meets what was reported lost longer ago than
`core/bounds.py` says for this pace and for requests as slow as the slowest of the storm, and for
every leading engine that died on the way once more what a take-over takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from s3kv.core.bounds import Pace, staleness
from s3kv.core.sequencer import SequencerSettings
from s3kv.runtime.duties import Backoff
from tests.fakes.storm_spec import Event, Times, chunks_in
from tests.fakes.storm_store import SLOW_S

LOADED_S = 10.0
"""On top of every bound: for 20 processes on two cores that others use as well. The bounds allow
for requests, which are measured here, and nothing for a process that is not scheduled."""

SECOND_THOUGHTS_S = 5.0
"""Records tell last use in whole seconds, and a use wins over a report of the same moment or, where
several follow one another, of the next seconds."""

PASSING_SHARE = 0.5
"""Errors that may pass, of all that was tried: on a loaded machine requests run into timeouts, and
commits into the time after which they may not be announced. An engine that meets one misses, or
saves later; but most of what is tried works."""


def pace_of(times: Times, request_s: float) -> Pace:
    """Of the storm's clients; the advice on commits stays at its minimum for so few writers."""
    settings = SequencerSettings()
    return Pace(
        poll_interval_s=times.poll_s,
        head_ttl_s=times.head_ttl_s,
        commit_interval_s=settings.interval_min_ms / 1_000,
        fold_busy_s=settings.fold_busy_s,
        fold_idle_s=settings.fold_idle_s,
        patience_s=settings.patience_s,
        patience_spread_s=settings.patience_spread_s,
        recheck_min_s=settings.recheck_min_s,
        inbox_check_s=settings.inbox_check_s,
        request_s=request_s,
    )


@dataclass(frozen=True, slots=True)
class _Tick:
    number: int
    listed_s: float


@dataclass(frozen=True, slots=True)
class _Opening:
    """listed: the chunks of which the index said that they are there."""

    who: str
    born_s: float
    ready_s: float
    listed: frozenset[int]


class Verdict:
    """Reads the events of one storm, in the order in which they were said."""

    def __init__(self, events: Sequence[Event], times: Times) -> None:
        self.counts = Counter(event.what for event in events)
        self._events = events
        slowest_s = max((float(e.text) for e in events if e.what == "slow"), default=SLOW_S)
        self._bounds = staleness(pace_of(times, slowest_s))
        self._times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for event in events:
            self._times[event.what][event.chunk].append(event.at_s)
        self._ticks = [_Tick(e.count, float(e.text)) for e in events if e.what == "tick"]
        self._vacancies_s = list(_vacancies_s(events))
        self._openings = list(_openings(events))

    def chunks(self, what: str) -> set[int]:
        """The chunks that somebody said this of."""
        return set(self._times[what])

    def said(self, what: str) -> list[str]:
        """The words that came with it."""
        return [f"{event.who}: {event.text}" for event in self._events if event.what == what]

    def hard_failures(self) -> list[str]:
        """Errors that do not pass by themselves."""
        passing = ("Transient(", "Throttled(")
        return [f"{e.who}: {e.text}" for e in self._failed() if not e.text.startswith(passing)]

    def passing_failures_are_few(self) -> bool:
        """Whether most of what was tried worked."""
        tried = sum(self.counts[what] for what in ("stored", "hit", "lost", "failed", "swept"))
        return sum(1 for _ in self._failed()) <= PASSING_SHARE * tried

    def _failed(self) -> Iterator[Event]:
        return (event for event in self._events if event.what == "failed")

    # ------------------------------------------------------------------- who opens knows
    def forgotten(self) -> list[str]:
        """What was acknowledged before somebody began to open the index who then did not list it.

        Left out is what had been harmed or reported lost by then: sweepers report, too.
        """
        return [
            f"{each.who} does not list {chunk}"
            for each in self._openings
            for chunk, stored_s in self._times["stored"].items()
            if stored_s[0] < each.born_s
            and chunk not in each.listed
            and not self._is_excused(chunk, each.ready_s)
        ]

    def _is_excused(self, chunk: int, by_s: float) -> bool:
        told_s = [*self._times["harm"].get(chunk, ()), *self._times["losing"].get(chunk, ())]
        return any(each_s < by_s for each_s in told_s)

    def unaware(self) -> list[str]:
        """What was reported lost before somebody began to open the index who then listed it."""
        return [
            f"{each.who} lists {chunk}"
            for each in self._openings
            for chunk in each.listed
            for lost_s, losing_s in self._losses(chunk)
            if lost_s < each.born_s and not self._is_renewed(chunk, losing_s, each.ready_s)
        ]

    # ------------------------------------------------------------------- who follows learns
    def misled(self) -> list[str]:
        """Hits of readers who had read a tick into which the report had been folded."""
        return [
            f"{event.who} at tick {event.count} takes {event.chunk}, lost in tick {tick.number}"
            for event, lost_s in self._late_hits()
            for tick in self._ticks
            if tick.listed_s > lost_s and event.count >= tick.number
        ]

    def overdue(self) -> list[str]:
        """Hits later after the report than the bound, which is that of a store that answers."""
        return [
            f"{event.who} takes {event.chunk} {event.at_s - lost_s:.1f} s after its report"
            for event, lost_s in self._late_hits()
            if event.at_s - lost_s > self.bound_s(lost_s, event.at_s) + LOADED_S
            and not self._is_unanswered(lost_s, event.at_s)
        ]

    def longest_dangling_s(self) -> float:
        """How long after the report of a loss somebody still met it."""
        return max((event.at_s - lost_s for event, lost_s in self._late_hits()), default=0.0)

    def bound_s(self, lost_s: float, at_s: float) -> float:
        """How long a report of that moment may take, seen from this one."""
        begin_s = self._last_tick_s(lost_s)
        vacancies = sum(begin_s <= each_s <= at_s for each_s in self._vacancies_s)
        return self._bounds.busy_worst_s + vacancies * self._bounds.quiet_worst_s

    def _is_unanswered(self, lost_s: float, at_s: float) -> bool:
        """Whether a request failed on the way: engines pause then, up to half a minute."""
        begin_s = self._last_tick_s(lost_s) - Backoff().max_s
        return any(begin_s <= each_s <= at_s for each_s in self._times["unanswered"][-1])

    def _last_tick_s(self, before_s: float) -> float:
        """When somebody last led for certain."""
        return max((t.listed_s for t in self._ticks if t.listed_s < before_s), default=0.0)

    def _late_hits(self) -> Iterator[tuple[Event, float]]:
        for event in self._events:
            if event.what == "dangling":
                for lost_s, losing_s in self._losses(event.chunk):
                    if lost_s < event.at_s and not self._is_renewed(
                        event.chunk, losing_s, event.at_s
                    ):
                        yield event, lost_s

    def _losses(self, chunk: int) -> Iterator[tuple[float, float]]:
        """When each report was durable, and when it began."""
        for lost_s in self._times["lost"].get(chunk, ()):
            yield lost_s, max(s for s in self._times["losing"][chunk] if s <= lost_s)

    def _is_renewed(self, chunk: int, losing_s: float, at_s: float) -> bool:
        """Whether somebody announced it anew, knowing of the loss or not."""
        stores = self._times["storing"].get(chunk, ())
        return any(losing_s - SECOND_THOUGHTS_S < s <= at_s for s in stores)


def _openings(events: Sequence[Event]) -> Iterator[_Opening]:
    born_s: dict[str, float] = {}
    for event in events:
        if event.what == "born":
            born_s[event.who] = event.at_s
        elif event.what == "ready":
            listed = frozenset(chunks_in(event.text))
            yield _Opening(event.who, born_s[event.who], event.at_s, listed)


def _vacancies_s(events: Sequence[Event]) -> Iterator[float]:
    """When an engine died that led, or may just have begun to."""
    leader, trying = "", set()
    for event in events:
        if event.what == "ticking":
            trying.add(event.who)
        elif event.what == "tick":
            leader = event.who
            trying.discard(leader)
        elif event.what == "ended" and (event.who == leader or event.who in trying):
            yield event.at_s


def report(verdict: Verdict, folder: Path) -> None:
    """One line for whoever watches."""
    words = ("ended", "tick", "stored", "hit", "harm", "lost", "dangling", "failed", "unanswered")
    said = ", ".join(f"{word} {verdict.counts[word]}" for word in words)
    last_s = verdict.longest_dangling_s()
    print(f"{folder.name}: {said}; dangling at most {last_s:.1f} s after its report")
