"""A seeded world for the index protocol: one bucket, many processes, everything that goes wrong.

Processes are generators that yield requests. Between any two of their steps the scheduler may
crash them, let them sleep far beyond every limit, delay a request, or lose its reply with or
without effect. Parts of an `All` are carried out one by one, in any order, between other processes'
requests. The same seed gives the same run.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from s3kv.core import requests as core
from s3kv.core.forgetting import Limits
from s3kv.core.records import RecordSet
from s3kv.errors import Transient
from tests.fakes.index_store import IndexStore

REQUEST_MAX = 50
"""Longest life of a request; all times are scaled down, see `actors`."""


@dataclass(frozen=True, slots=True)
class Nop:
    """A step of a process without a request."""


Wish: TypeAlias = core.Request | Nop
Process: TypeAlias = Generator[Wish, core.Reply, None]


@dataclass(slots=True)
class _Running:
    process: Process
    wake_s: float
    wish: Wish | None = None
    sent_s: float = 0.0
    todo: list[int] = field(default_factory=list)
    answers: dict[int, core.Reply] = field(default_factory=dict)
    value: core.Value | None = None
    signed_s: float | None = None
    """When the request left the process: it may arrive up to `REQUEST_MAX` later, and not after."""


class World:
    """The bucket, the time and the scheduler; `errors` collects broken invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = IndexStore()
        self.store.request_s = 0.0
        self.limits = Limits()
        """How far every engine is configured to forget."""
        self.skews_s: tuple[float, ...] = (0,)
        """How far clocks of engines may be off."""
        self.recent_max = 65_536
        """Records that a reader keeps beside its base."""
        self.pinned: tuple[int, ...] = ()
        """Chunks of a pinned set."""
        self.harmed: set[int] = set()
        """Chunks whose shards somebody else deleted, as a lifecycle rule does."""
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.trace: list[str] = []
        self.published: list[RecordSet] = []
        """Every record set whose commit returned."""
        self.crash_rate, self.lost_rate, self.sleep_rate, self.delay_rate = 0.002, 0.03, 0.01, 0.02

    @property
    def now_s(self) -> float:
        return self.store.now_s

    def moment(self, skew_s: float = 0.0) -> core.Moment:
        """Unix time is the store's, but for the skew of a process's clock."""
        return core.Moment(self.now_s + skew_s, self.now_s)

    def run(self, spawn: Callable[[str], Process], names: list[str], steps: int) -> None:
        """Let the processes live; one that ends or crashes begins anew under its name."""
        running = {name: _Running(spawn(name), self.now_s) for name in names}
        for _ in range(steps):
            self.store.now_s += self.rng.choice((0, 0, 1, 1, 2, 5))
            awake = [name for name, state in running.items() if state.wake_s <= self.now_s]
            if not awake:
                continue
            name = self.rng.choice(awake)
            state = running[name]
            if self.rng.random() < self.crash_rate:
                self.counts["crashes"] += 1
                state.process.close()
                running[name] = _Running(spawn(name), self.now_s)
            elif self.rng.random() < self.sleep_rate:
                state.wake_s = self.now_s + self.rng.choice((20, 100, 500, 1_500))
            elif not self._step(name, state):
                running[name] = _Running(spawn(name), self.now_s)
        for state in running.values():
            state.process.close()

    def finish(self, process: Process) -> None:
        """Run one process to its end, alone and without faults."""
        state = _Running(process, self.now_s)
        rates = self.crash_rate, self.lost_rate, self.sleep_rate, self.delay_rate
        self.crash_rate = self.lost_rate = self.sleep_rate = self.delay_rate = 0.0
        for _ in range(20_000):
            self.store.now_s += 1
            if not self._step("finish", state):
                break
        else:
            raise AssertionError("did not finish")
        self.crash_rate, self.lost_rate, self.sleep_rate, self.delay_rate = rates

    def _step(self, name: str, state: _Running) -> bool:
        """Carry out what the process waits for, or hand it the answer; False when it has ended."""
        if state.wish is None or state.value is not None:
            return self._resume(state)
        if self.rng.random() < self.delay_rate:
            state.signed_s = self.now_s if state.signed_s is None else state.signed_s
            state.wake_s = self.now_s + self.rng.randrange(1, REQUEST_MAX)
            return True
        if isinstance(state.wish, core.All):
            at = state.todo.pop(self.rng.randrange(len(state.todo)))
            part = state.wish.requests[at]
            value = self._carried_out(name, part, state)
            state.answers[at] = core.Reply(value, state.sent_s, self.now_s)
            if not state.todo:
                state.value = tuple(state.answers[i] for i in range(len(state.answers)))
        elif isinstance(state.wish, Nop):
            state.value = core.Done()
        elif isinstance(state.wish, core.Work):
            state.value = core.Computed(state.wish.function())
        else:
            state.value = self._carried_out(name, state.wish, state)
        # Usually the answer arrives at once; else the process sleeps, or dies, before it reads it.
        return self.rng.random() < 0.1 or state.value is None or self._resume(state)

    def _resume(self, state: _Running) -> bool:
        try:
            if state.wish is None:
                wish = next(state.process)
            else:
                assert state.value is not None
                wish = state.process.send(core.Reply(state.value, state.sent_s, self.now_s))
        except StopIteration:
            return False
        except Transient:
            self.counts["gave_up"] += 1
            return False
        state.wish, state.sent_s, state.value, state.signed_s = wish, self.now_s, None, None
        state.answers = {}
        state.todo = list(range(len(wish.requests))) if isinstance(wish, core.All) else []
        if isinstance(wish, core.All) and not wish.requests:
            state.value = ()
        return True

    def _carried_out(self, name: str, request: core.Single, state: _Running) -> core.Value:
        signed_s = self.now_s if state.signed_s is None else state.signed_s
        if isinstance(request, core.Timed) and signed_s > request.by_s:
            self.counts["late"] += 1
            return core.Late()
        if self.now_s - signed_s > REQUEST_MAX:
            self.counts["expired"] += 1
            return core.Lost("refused: signed too long ago")
        self.trace.append(f"{self.now_s} {name} {type(request).__name__} {_subject(request)}")
        if self.rng.random() >= self.lost_rate:
            return self.store.carry_out(request)
        self.counts["lost"] += 1
        if self.rng.random() < 0.5:
            self.store.carry_out(request)
        return core.Lost("the reply")


def _subject(request: core.Single) -> str:
    match request:
        case core.ListPrefix(prefix) | core.ListPage(prefix):
            return prefix
        case core.DeleteListed(found):
            return " ".join(each.key for each in found)
        case core.Copy(_, key):
            return key
        case core.Delete(keys):
            return " ".join(keys)
        case core.Put(key, body) | core.Create(key, body):
            return f"{key} {zlib.crc32(body):08x}"
    return request.key
