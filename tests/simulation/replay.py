"""Tapes of real index clients, played back to fresh state machines.

A *tape* has, for one client and in their order, every protocol that it began, every request that a
protocol yielded and every reply that it got. Played back, fresh machines must ask for exactly the
same, as the bucket of the simulation must answer the same (`ledger`): so that what is proved there
holds for what runs.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from types import GeneratorType
from typing import Any, TypeAlias, TypeVar

from s3kv.core import requests as core
from s3kv.core.compactor import Compactor
from s3kv.core.follower import Follower
from s3kv.core.records import RecordSet
from s3kv.core.sequencer import Sequencer
from s3kv.core.snapshot import Snapshot
from s3kv.runtime.index_client import IndexReader
from s3kv.runtime.index_writer import IndexWriter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """A protocol was given to the runtime: a method of one of the client's state machines."""

    call: int
    machine: str
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a protocol yielded."""

    call: int
    request: core.Request


@dataclass(frozen=True, slots=True)
class Heard:
    """What it was sent."""

    call: int
    reply: core.Reply


@dataclass(frozen=True, slots=True)
class Ended:
    """It returned, or raised an error of this kind; "closed" if it was not carried to its end."""

    call: int
    how: str


@dataclass(frozen=True, slots=True)
class Noted:
    """The client told its follower what it knows by itself."""

    records: RecordSet


Mark: TypeAlias = Begun | Asked | Heard | Ended | Noted


class Draws(random.Random):
    """Random numbers that are remembered, and come again in the order in which they were drawn."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: list[tuple[float, float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        """As of `random.Random`."""
        value = super().uniform(a, b)
        self.drawn.append((a, b, value))
        return value

    def again(self) -> random.Random:
        """What drew from this one draws the same from it, whoever else drew other ranges."""
        return _Drawn(list(self.drawn))


class _Drawn(random.Random):
    def __init__(self, drawn: list[tuple[float, float, float]]) -> None:
        super().__init__(0)
        self._drawn = drawn

    def uniform(self, a: float, b: float) -> float:
        at = next(i for i, (low, high, _) in enumerate(self._drawn) if (low, high) == (a, b))
        return self._drawn.pop(at)[2]


@dataclass(frozen=True, slots=True)
class Machines:
    """The state machines of one client; a reader has only the first."""

    follower: Follower
    sequencer: Sequencer | None = None
    compactor: Compactor | None = None

    def name_of(self, machine: object) -> str:
        """Which of them it is."""
        (name,) = (each.name for each in fields(self) if getattr(self, each.name) is machine)
        return name


class Tape:
    """Of one client. Owned by its loop thread."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._calls = 0

    def record(self, steps: core.Steps[T], machines: Machines) -> core.Steps[T]:
        """The same protocol, written down. steps: not begun yet."""
        call, self._calls = self._calls, self._calls + 1
        assert isinstance(steps, GeneratorType)
        arguments = inspect.getgeneratorlocals(steps)
        machine = machines.name_of(arguments.pop("self"))
        self.marks.append(Begun(call, machine, steps.gi_code.co_name, arguments))
        how = "closed"
        try:
            request = next(steps)
            while True:
                self.marks.append(Asked(call, request))
                reply = yield request
                self.marks.append(Heard(call, reply))
                request = steps.send(reply)
        except StopIteration as end:
            how = "returned"
            result: T = end.value
            return result
        except Exception as error:
            how = type(error).__name__
            raise
        finally:
            steps.close()
            self.marks.append(Ended(call, how))

    def asked(self) -> Iterator[core.Single]:
        """Every single request, those of an `All` one by one, computations left out."""
        for mark in self.marks:
            if isinstance(mark, Asked) and not isinstance(mark.request, core.Work):
                request = mark.request
                yield from request.requests if isinstance(request, core.All) else (request,)


class TapedReader(IndexReader):
    """A reader that writes down what its follower does."""

    def __init__(self, *given: Any) -> None:
        self.tape = Tape()
        super().__init__(*given)

    def note(self, records: RecordSet) -> None:
        self.tape.marks.append(Noted(records))
        super().note(records)

    async def _perform(self, steps: core.Steps[None]) -> None:
        await super()._perform(self.tape.record(steps, self.machines()))

    def machines(self) -> Machines:
        """Those that act."""
        return Machines(self.follower)

    def fresh(self) -> Machines:
        """The same state machines, knowing nothing."""
        return Machines(Follower(self.follower.namespace, self._settings.head_ttl_s))


class TapedWriter(TapedReader, IndexWriter):
    """A writer that writes down what its state machines do."""

    def machines(self) -> Machines:
        return Machines(self.follower, self.sequencer, self._compactor)

    def fresh(self) -> Machines:
        assert isinstance(self._rng, Draws)
        follower = Follower(self.follower.namespace, self._settings.head_ttl_s)
        name, settings = self.sequencer.writer, self.sequencer._settings
        return Machines(
            follower,
            Sequencer(follower, name, settings, self._rng.again()),
            Compactor(follower, name, self._settings.compactor),
        )


def play(tape: Tape, machines: Machines) -> None:
    """Give fresh machines the replies on the tape; they must ask for what is on it, in its order.

    Raises AssertionError at the first difference.
    """
    running: dict[int, core.Steps[None]] = {}
    produced: dict[int, Asked | Ended] = {}
    for at, mark in enumerate(tape.marks):
        match mark:
            case Noted(records):
                machines.follower.note(records)
            case Begun(call, machine, method, arguments):
                running[call] = getattr(getattr(machines, machine), method)(**arguments)
                produced[call] = _advance(call, running[call], None)
            case Heard(call, reply):
                asked = produced[call]
                assert isinstance(asked, Asked)
                if isinstance(asked.request, core.Work):
                    value = core.Computed(asked.request.function())
                    reply = replace(reply, value=value)
                produced[call] = _advance(call, running[call], reply)
            case Ended(call, "closed"):
                running.pop(call).close()
            case Asked() | Ended():
                _compare(at, produced[mark.call], mark)


def _advance(call: int, steps: core.Steps[None], reply: core.Reply | None) -> Asked | Ended:
    try:
        return Asked(call, next(steps) if reply is None else steps.send(reply))
    except StopIteration:
        return Ended(call, "returned")
    except Exception as error:  # noqa: BLE001  what a protocol raises is on the tape
        return Ended(call, type(error).__name__)


def _compare(at: int, produced: Asked | Ended, taped: Asked | Ended) -> None:
    works = [
        isinstance(each, Asked) and isinstance(each.request, core.Work)
        for each in (produced, taped)
    ]
    # Functions cannot be compared: what they return shows in the requests that follow.
    assert all(works) or produced == taped, f"mark {at}: {produced} where the tape has {taped}"


def known(snapshot: Snapshot) -> tuple[object, ...]:
    """Everything that a snapshot says, for comparing two."""
    whole = snapshot.whole()
    columns = (whole.fps, whole.seen_s, whole.blocks, whole.flags)
    state = (snapshot.opened, snapshot.incomplete, snapshot.pause, snapshot.watermark_s)
    lists = (column.tolist() for column in columns)
    return (*lists, snapshot.head, snapshot.head_seen_s, *state)
