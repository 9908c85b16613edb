"""What a fleet asks of its bucket: the real state machines of N engines on simulated time, counted.

Nothing fails here and no request takes time, so that a thousand engines are affordable; what the
protocol does when things go wrong is tested elsewhere. When a process commits, polls and
sequences is decided as `runtime.index_writer` does: by `IndexSettings` and by what `Sequencer` and
`Compactor` say is due. Shards are not counted, and each commit carries one record: the number of
requests does not depend on how many it carries. Processes that only follow are all alike: a sample
of them is counted for all.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from s3kv.core import requests as core
from s3kv.core.bounds import GET_USD, PUT_USD
from s3kv.core.compactor import Compactor
from s3kv.core.follower import Follower
from s3kv.core.records import make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.index_store import NS, IndexStore

HOUR_S = 3_600.0
READERS_MAX = 25
DEDICATED = IndexSettings(takes_lead=True, segments_per_s=250.0)
"""The settings of `s3kv sequencer`."""

_KINDS = {
    core.Get: "get",
    core.Stat: "get",
    core.Put: "put",
    core.Create: "put",
    core.ListPrefix: "list",
    core.Delete: "delete",
}
Kinds = Counter[str]
"""How many requests of each kind."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Requests counted in some simulated seconds; `put` includes the conditional ones."""

    seconds: float
    counts: Kinds

    def per_hour(self, kind: str) -> float:
        """Requests of a kind in an hour at this rate."""
        return self.counts[kind] * HOUR_S / self.seconds

    @property
    def usd_per_hour(self) -> float:
        """DELETE is free."""
        writes = self.per_hour("put") + self.per_hour("list")
        return writes * PUT_USD + self.per_hour("get") * GET_USD


class Fleet:
    """N engines, each with a process that only follows and one that writes; perhaps a sequencer."""

    def __init__(self, engine_count: int, *, dedicated: bool = False, seed: int = 1) -> None:
        """dedicated: a process of its own sequences for all."""
        self.store = IndexStore()
        self.store.request_s = 0.0
        self.is_busy = False
        """Whether every engine always has something to commit."""
        self._rng = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], float]]] = []
        self._wake_count = 0
        self._written, self._read = Kinds(), Kinds()
        self._counts = self._written
        """Where the process that acts right now is counted."""
        self.writers = [Writer(self, IndexSettings(), i) for i in range(engine_count)]
        if dedicated:
            self.writers.append(Writer(self, DEDICATED, engine_count))
        readers = [Reader(self, IndexSettings()) for _ in range(min(engine_count, READERS_MAX))]
        self._alike = engine_count // len(readers)
        assert self._alike * len(readers) == engine_count, "a sample must stand for a whole number"
        for act in [*(each.act for each in self.writers), *(each.act for each in readers)]:
            # Spread over a second, as processes are that were not started by one clock.
            self._wake(self.store.now_s + self._rng.random(), act)

    def run(self, seconds: float) -> Bill:
        """Let simulated time pass and count what is sent in it."""
        self._written.clear()
        self._read.clear()
        end_s = self.store.now_s + seconds
        while self._queue[0][0] <= end_s:
            wake_s, _, act = heapq.heappop(self._queue)
            self.store.now_s = wake_s
            self._wake(act(), act)
        self.store.now_s = end_s
        counts = self._written.copy()
        for kind, count in self._read.items():
            counts[kind] += self._alike * count
        return Bill(seconds, counts)

    def send(self, steps: core.Steps[None], *, only_follows: bool = False) -> None:
        """Carry a protocol out at this moment."""
        self._counts = self._read if only_follows else self._written
        self.store.run(steps, self._count)
        self.store.requests.clear()

    def new_sequencer(self, settings: IndexSettings) -> Sequencer:
        """The writing side of one process."""
        return Sequencer(
            Follower(NS, settings.head_ttl_s),
            self._rng.randbytes(16),
            SequencerSettings(
                takes_lead=settings.takes_lead, segments_per_s=settings.segments_per_s
            ),
            random.Random(self._rng.random()),
        )

    def _wake(self, at_s: float, act: Callable[[], float]) -> None:
        self._wake_count += 1
        heapq.heappush(self._queue, (at_s, self._wake_count, act))

    def _count(self, request: core.Single) -> None:
        self._counts[_KINDS[type(request)]] += 1


class Reader:
    """The scheduler's side of an engine: it follows."""

    def __init__(self, fleet: Fleet, settings: IndexSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._follower = Follower(NS, settings.head_ttl_s)

    def act(self) -> float:
        """Follow; when again."""
        opened = self._follower.snapshot.opened
        steps = self._follower.poll() if opened else self._follower.open()
        self._fleet.send(steps, only_follows=True)
        return self._fleet.store.now_s + self._settings.poll_interval_s


class Writer:
    """The worker's side of an engine: it commits, follows, sequences and compacts."""

    def __init__(self, fleet: Fleet, settings: IndexSettings, number: int) -> None:
        self.sequencer = fleet.new_sequencer(settings)
        self._number = number
        self._fleet = fleet
        self._settings = settings
        self._follower = self.sequencer.follower
        self._compactor = Compactor(self._follower, self.sequencer.writer, settings.compactor)
        self._committed_s = self._polled_s = float("-inf")

    def act(self) -> float:
        """Do what is due, in the order of `IndexWriter`; when something is due again."""
        now = self._fleet.store.now()
        now_s = now.monotonic_s
        if not self._follower.snapshot.opened:
            self._fleet.send(self._follower.open())
            self._polled_s = now_s
        if self._commit_due_s() <= now_s:
            self.commit()
        if self._poll_due_s() <= now_s:
            self._fleet.send(self._follower.poll())
            self._polled_s = now_s
        if self.sequencer.due(now_s) <= now_s:
            self._fleet.send(self.sequencer.act(now))
        if self.sequencer.leads and self._compactor.due(now_s) <= now_s:
            self._fleet.send(self._compactor.act(now))
        due_s = min(self._commit_due_s(), self._poll_due_s(), self.sequencer.due(now_s))
        return max(due_s, now_s + 0.005)

    def commit(self) -> None:
        """Make one record durable."""
        now = self._fleet.store.now()
        # The same chunk again and again: a long run does not fill the memory.
        record = make_records([self._number], int(now.unix_s), 16)
        self._fleet.send(self.sequencer.flush(record, now))
        self._committed_s = now.monotonic_s

    def _commit_due_s(self) -> float:
        if not self._fleet.is_busy or self._settings.takes_lead:
            return float("inf")
        advised_s = max(self._follower.interval_ms / 1_000, 1.0)
        return self._committed_s + min(advised_s, self._settings.interval_max_s)

    def _poll_due_s(self) -> float:
        return self._polled_s + self._settings.poll_interval_s


IDLE_WARM_S = 130.0
"""Until who leads folds at its idle pace, and everybody looks after the inbox at theirs."""

BUSY_WARM_S = 30.0
"""Until all commit at the pace that the ticks advise."""


def idle_bill(engine_count: int, seconds: float, *, dedicated: bool = False) -> Bill:
    """What a fleet costs in which nobody has anything to say, some time after somebody had."""
    fleet = Fleet(engine_count, dedicated=dedicated)
    fleet.run(5.0)
    fleet.writers[0].commit()
    fleet.run(IDLE_WARM_S)
    return fleet.run(seconds)


def busy_bill(engine_count: int, seconds: float, *, dedicated: bool = False) -> Bill:
    """What a fleet costs in which every engine commits as often as it may."""
    fleet = Fleet(engine_count, dedicated=dedicated)
    fleet.run(5.0)
    fleet.is_busy = True
    fleet.run(BUSY_WARM_S)
    return fleet.run(seconds)
