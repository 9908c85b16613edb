"""`s3kv sequencer URI [NAMESPACE...]`: a process that leads the index, so that no engine has to.

Keeps the process alive and says once a minute what was done. When to fold, how to lead and what to
forget is decided by the same state machines as in an engine (`runtime.index_writer`); engines take
over within seconds if this process dies, and step down when it comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from s3kv.bucket.base import ObjectStore
from s3kv.cli.amounts import byte_count, seconds
from s3kv.cli.choosing import choose_namespace, namespaces, require_index
from s3kv.cli.connection import EXIT_OK, bucket_settings, opened
from s3kv.cli.listing import SHORT_ID, Unread, read_namespace
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.service import stop_signals, time_text, unless
from s3kv.cli.subjects import subject_of
from s3kv.cli.words import age_text, bytes_text, counted
from s3kv.core.ids import NamespaceId
from s3kv.core.namespace import Namespace
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexSettings
from s3kv.runtime.index_writer import IndexWriter

SEGMENTS_PER_S: Final = 250.0
"""What a core that does nothing else folds: 4 ms of it each."""

LOOK_S: Final = 60.0
LINE_S: Final = 60.0
TURN_S: Final = 1.0
DRAIN_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the log. event: `begins`, `sequencing`, `left_alone`, `ended` or `not_listed`.

    ticks, segments_folded: since the line before of this namespace; writers: engines that
    committed within the last minute.
    """

    unix_s: float
    event: str
    namespace: NamespaceId | None = None
    reason: str = ""
    leads: bool = False
    head_tick: int = 0
    ticks: int = 0
    segments_folded: int = 0
    writers: int = 0

    def text(self) -> str:
        """As people read it."""
        name = self.namespace[:SHORT_ID] if self.namespace else "all"
        start = f"{time_text(self.unix_s)} {name}"
        if self.event != "sequencing":
            return f"{start}: {self.event.replace('_', ' ')}: {self.reason}"
        role = "leads" if self.leads else "another process leads"
        done = f"{counted(self.ticks, 'tick')}, {counted(self.segments_folded, 'segment')} folded"
        return (
            f"{start}: {role} at tick {self.head_tick}, {done}, {counted(self.writers, 'writer')}"
        )


@dataclass(slots=True)
class _Post:
    """One namespace that is led. told: when its last line was written, and the totals then."""

    writer: IndexWriter
    running: asyncio.Task[None]
    told_s: float = float("-inf")
    told: tuple[int, int, bool] = (0, 0, False)
    has_ended: bool = False


@dataclass(slots=True)
class Leaders:
    """Leads every namespace there is, or those that are named. Owned by one task.

    named: None for all; tell: takes each line.
    """

    store: ObjectStore
    clock: Clock
    settings: IndexSettings
    named: Sequence[NamespaceId] | None
    tell: Callable[[Line], None]
    _posts: dict[NamespaceId, _Post] = field(default_factory=dict)
    _complaints: dict[NamespaceId | None, str] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then end what was begun."""
        looked_s = float("-inf")
        try:
            while not stop.is_set():
                now_s = self.clock.monotonic_s()
                if now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    await unless(stop, self._look(), None)
                self._report()
                await unless(stop, self.clock.sleep(TURN_S), None)
        finally:
            for ns in list(self._posts):
                await self._end(ns)

    async def _look(self) -> None:
        """Begin with what is new, end what is gone."""
        try:
            found = await namespaces(self.store) if self.named is None else self.named
        except S3KVError as error:
            self._complain(None, "not_listed", str(error))
            return
        self._complaints.pop(None, None)
        for ns in [ns for ns in self._posts if ns not in found]:
            await self._end(ns)
        for ns in found:
            await self._look_at(ns)

    async def _look_at(self, ns: NamespaceId) -> None:
        try:
            described = await read_namespace(self.store, ns)
        except S3KVError as error:
            if ns not in self._posts:  # else its writer meets the same, and goes on by itself
                self._complain(ns, "left_alone", str(error))
            return
        if isinstance(described, Unread):
            # Somebody deletes it, or has: who went on leading would write into it for ever.
            await self._end(ns)
            self._complain(ns, "left_alone", described.reason)
        elif ns not in self._posts:
            self._complaints.pop(ns, None)
            self._begin(described)

    def _begin(self, described: Namespace) -> None:
        per_block = subject_of(described).bytes_per_block
        settings = replace(self.settings, bytes_per_block=per_block)
        writer = IndexWriter(self.store, described, self.clock, settings)
        self._posts[described.id] = _Post(writer, asyncio.create_task(writer.run()))

    async def _end(self, ns: NamespaceId) -> None:
        post = self._posts.pop(ns, None)
        if post is not None:
            await post.writer.drain(DRAIN_S)
            post.running.cancel()
            await asyncio.gather(post.running, return_exceptions=True)

    def _report(self) -> None:
        now_s = self.clock.monotonic_s()
        for ns, post in self._posts.items():
            if post.running.done() and not post.has_ended:
                post.has_ended = True  # nothing that this process could do: a person has to look
                reason = post.writer.refused or repr(post.running.exception())
                self.tell(self._line(ns, "ended", reason))
            sequencer = post.writer.sequencer
            totals = (sequencer.tick_count, sequencer.folded_count, sequencer.leads)
            if post.has_ended or totals == post.told or now_s - post.told_s < LINE_S:
                continue
            self.tell(
                Line(
                    unix_s=self.clock.unix_s(),
                    event="sequencing",
                    namespace=ns,
                    leads=sequencer.leads,
                    head_tick=post.writer.snapshot.head,
                    ticks=totals[0] - post.told[0],
                    segments_folded=totals[1] - post.told[1],
                    writers=sequencer.active_writers(now_s),
                )
            )
            post.told_s, post.told = now_s, totals

    def _complain(self, ns: NamespaceId | None, event: str, reason: str) -> None:
        """Once for each reason."""
        if self._complaints.get(ns) != reason:
            self._complaints[ns] = reason
            self.tell(self._line(ns, event, reason))

    def _line(self, ns: NamespaceId | None, event: str, reason: str) -> Line:
        return Line(unix_s=self.clock.unix_s(), event=event, namespace=ns, reason=reason)


async def sequencer(
    options: Options,
    names: Sequence[str],
    ttl: str | None,
    max_bytes: str | None,
    output: Output,
) -> int:
    """Lead until SIGINT or SIGTERM. Raises `ConfigError` for bad input, `S3KVError` at the start.

    names: namespaces, by the beginnings of their ids; empty: all, also those that come later. ttl,
    max_bytes: of each namespace, as written for an engine.
    """
    limits = IndexSettings(
        takes_lead=True,
        segments_per_s=SEGMENTS_PER_S,
        ttl_s=None if ttl is None else seconds("--ttl", ttl),
        max_bytes=None if max_bytes is None else byte_count("--max-bytes", max_bytes),
    )
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        named = [await choose_namespace(store, uri, name) for name in names] or None
        await require_index(store, uri)
        clock = Clock()
        _tell_beginning(uri, named, limits, clock.unix_s(), output)
        leaders = Leaders(store, clock, limits, named, lambda line: _tell(line, output))
        with stop_signals() as stop:
            await leaders.run(stop)
    return EXIT_OK


def beginning(uri: str, named: Sequence[NamespaceId] | None, limits: IndexSettings) -> str:
    """What is led and what it enforces, in words."""
    what = f"every namespace under {uri}, later ones too"
    if named:
        what = f"{', '.join(ns[:SHORT_ID] for ns in named)} under {uri}"
    bounds = []
    if limits.ttl_s is not None:
        bounds.append(f"what was not used for {age_text(limits.ttl_s)}")
    if limits.max_bytes is not None:
        bounds.append(f"the least recently used beyond {bytes_text(limits.max_bytes)} each")
    if bounds:
        return f"{what}; forgets {' and '.join(bounds)}"
    return (
        f"{what}; WARNING: neither --ttl nor --max-bytes: nothing is forgotten while this process "
        "leads, whatever the engines' limits, since only who leads enforces limits"
    )


def _tell_beginning(
    uri: str,
    named: Sequence[NamespaceId] | None,
    limits: IndexSettings,
    now_s: float,
    output: Output,
) -> None:
    line = Line(unix_s=now_s, event="begins", reason=beginning(uri, named, limits))
    bounds = {"namespaces": named, "ttl_s": limits.ttl_s, "max_bytes": limits.max_bytes}
    output.event(_document(line) | bounds, line.text())


def _tell(line: Line, output: Output) -> None:
    output.event(_document(line), line.text())


def _document(line: Line) -> dict[str, object]:
    return {name: getattr(line, name) for name in Line.__dataclass_fields__}
