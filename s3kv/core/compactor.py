"""Merges ticks into runs and deletes what older runs repeat, so that opening an index stays cheap.

Rules upheld here: a run over lo..hi holds every record of its ticks, but for what is below the
watermark in its own header. Losses above it stay (R9): without the report a sweep would take the
bad shard for one that nobody announced, and adopt it. Two compactors write equal content under
equal names, or overlapping runs: both harmless, since merging is idempotent.

Sans-IO (see `requests`). Never touches the follower's state: may run beside its generators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from s3kv.core import keys
from s3kv.core.follower import Follower
from s3kv.core.indexfile import Header, Kind, decode, encode, max_file_bytes
from s3kv.core.maintenance import (
    CleanUp,
    Merging,
    Span,
    plan_bridging,
    plan_clean_up,
    plan_merging,
)
from s3kv.core.records import TIME_MAX_S, RecordSet, merge
from s3kv.core.requests import (
    PARALLEL_MAX,
    Absent,
    Delete,
    Get,
    Listed,
    ListPrefix,
    Moment,
    Put,
    Reply,
    Steps,
    ask,
    ask_all,
    listed,
    work,
)
from s3kv.errors import Corrupt, Denied, Mismatch, NewerFormat, Transient

DELETE_MAX: Final = 1_000
"""Names in one request of a clean-up."""

RETRY_S: Final = 60.0
"""Pause after a failed look; doubles up to the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    """ticks_min: so many ticks behind the last run make a new one; check_s: how often to look all
    the same; margin_s: age of a run before what it repeats is deleted."""

    ticks_min: int = 600
    check_s: float = 3_600.0
    margin_s: float = 3_600.0


@dataclass(slots=True)
class CompactorCounts:
    """Totals since start."""

    runs_written: int = 0
    files_deleted: int = 0
    unreadable: int = 0


class Compactor:
    """Owned by one task; reads `follower`, which belongs to another task of the same loop."""

    def __init__(self, follower: Follower, writer: bytes, settings: CompactorSettings) -> None:
        """writer: 16 bytes, for the header."""
        self.counts = CompactorCounts()
        self._follower = follower
        self._writer = writer
        self._settings = settings
        self._readable: set[tuple[str, int, float, str]] = set()
        """Uploads of runs that were read whole."""
        self._damaged: set[tuple[str, int, float, str]] = set()
        """Uploads of runs that cannot be read: as good as absent."""
        self._check_at_s = float("-inf")
        self._check_at_head = 0
        self._retry_s = RETRY_S

    def due(self, now_s: float) -> float:
        """When (monotonic seconds, perhaps past) `act` may have something to do."""
        behind = self._follower.snapshot.head >= self._check_at_head
        return min(now_s, self._check_at_s) if behind else self._check_at_s

    def act(self, now: Moment) -> Steps[None]:
        """Look at the log; write one run if ticks have piled up, delete what runs repeat.

        Raises `Transient`, `Denied`: try again later; and
        `Corrupt`, `Mismatch` if a file cannot be merged: then nothing was written.
        """
        try:
            yield from self._look(now)
        except Transient:
            # Merging is dear: a store that takes no run gets no thousand reads every few seconds.
            self._plan_next_look(now.monotonic_s, self._retry_s)
            self._retry_s = min(2 * self._retry_s, self._settings.check_s)
            raise
        except (Corrupt, Mismatch, Denied):
            self._plan_next_look(now.monotonic_s, self._settings.check_s)
            raise
        self._retry_s = RETRY_S
        self._plan_next_look(now.monotonic_s, self._settings.check_s)

    def _plan_next_look(self, now_s: float, pause_s: float) -> None:
        self._check_at_s = now_s + pause_s
        self._check_at_head = self._follower.snapshot.head + self._settings.ticks_min

    def _look(self, now: Moment) -> Steps[None]:
        head = self._follower.snapshot.head
        log = yield from self._list()
        if log.newest < head:
            # Somebody emptied the log: whoever leads would go on where nobody begins to read.
            self._follower.distrust()
            return
        runs = {run: found for run, found in log.runs.items() if found.upload not in self._damaged}
        sizes = {run: found.size for run, found in runs.items()}
        ticks = {tick: found.size for tick, found in log.ticks.items()}
        merging = plan_bridging(runs, log.ticks, self._settings.margin_s)
        merging = merging or plan_merging(sizes, ticks, self._settings.ticks_min)
        if merging is not None:
            yield from self._write(merging, log, now)
        yield from self._clean_up(log)

    def _clean_up(self, log: _Log) -> Steps[None]:
        """Delete what runs repeat that were read: a damaged one repeats nothing."""
        ages = {run: found.age_s for run, found in log.runs.items()}
        head = self._follower.snapshot.head
        self._readable &= {found.upload for found in log.runs.values()}
        while True:
            plan = plan_clean_up(ages, log.ticks, head, self._settings.margin_s)
            unread = [run for run in plan.relies_on if log.runs[run].upload not in self._readable]
            if plan.is_empty or not unread:
                break
            for run in unread:
                if not (yield from self._can_read(run, log.runs[run])):
                    del ages[run]
        if not plan.is_empty:
            yield from self._delete(plan)

    def _can_read(self, run: Span, found: Listed) -> Steps[bool]:
        name = keys.run_key(self._follower.namespace, *run)
        reply = yield from ask(Get(name, max_file_bytes(Kind.RUN)))
        try:
            yield from self._decoded(reply, Kind.RUN, run)
        except NewerFormat:
            raise
        except (Corrupt, Mismatch):
            return False
        self._readable.add(found.upload)
        return True

    def _list(self) -> Steps[_Log]:
        ns = self._follower.namespace
        replies = yield from ask_all(
            [ListPrefix(keys.run_prefix(ns)), ListPrefix(keys.tick_prefix(ns))]
        )
        runs, ticks = (listed(reply) for reply in replies)
        spans = [(keys.parse_run_key(found.key), found) for found in runs]
        numbers = [(keys.parse_tick_key(found.key), found) for found in ticks]
        return _Log(
            {(name.lo, name.hi): found for name, found in spans if name is not None},
            {name.tick: found for name, found in numbers if name is not None},
        )

    def _write(self, merging: Merging, log: _Log, now: Moment) -> Steps[None]:
        """Read what is to be merged, and write it as one run, or not at all."""
        ns = self._follower.namespace
        names = [keys.run_key(ns, *run) for run in merging.runs]
        gets = [Get(name, max_file_bytes(Kind.RUN)) for name in names]
        replies = yield from ask_all(gets)
        parts: list[RecordSet] = []
        header: Header | None = None
        for run, reply in zip(merging.runs, replies, strict=True):
            try:
                header, records = yield from self._decoded(reply, Kind.RUN, run)
            except NewerFormat:
                raise
            except (Corrupt, Mismatch):
                self._damaged.add(log.runs[run].upload)  # the next look does without it
                raise
            parts.append(records)
        for start in range(0, len(merging.ticks), PARALLEL_MAX):
            some = merging.ticks[start : start + PARALLEL_MAX]
            names = [keys.tick_key(ns, tick) for tick in some]
            replies = yield from ask_all([Get(name, max_file_bytes(Kind.TICK)) for name in names])
            for tick, reply in zip(some, replies, strict=True):
                try:
                    file = yield from self._decoded(reply, Kind.TICK, (tick, tick))
                except NewerFormat:
                    raise
                except (Corrupt, Mismatch):
                    # An empty one was never finished; an old one nobody will ever read.
                    if reply.value != b"" and log.ticks[tick].age_s < self._settings.margin_s:
                        raise
                    continue
                header = file[0]
                parts.append(file[1])
        if header is not None:
            yield from self._put(merging.span, header, parts, now)

    def _put(
        self, span: Span, newest: Header, parts: Sequence[RecordSet], now: Moment
    ) -> Steps[None]:
        watermark_s = max(newest.watermark_s, self._follower.snapshot.watermark_s)
        header = Header(
            kind=Kind.RUN,
            namespace=newest.namespace,
            lo=span[0],
            hi=span[1],
            writer=self._writer,
            watermark_s=watermark_s,
            interval_ms=newest.interval_ms,
            created_s=min(int(now.unix_s), TIME_MAX_S),
            pause_bits=newest.pause_bits,
        )
        body = yield from work(partial(_run_body, header, parts))
        yield from ask(Put(keys.run_key(newest.namespace, *span), body))
        self.counts.runs_written += 1

    def _decoded(self, reply: Reply, kind: Kind, span: Span) -> Steps[tuple[Header, RecordSet]]:
        """Raises `Corrupt`, `Mismatch`; `Transient` if it was cleaned up since it was listed."""
        if isinstance(reply.value, Absent):
            raise Transient(f"{kind.value.strip()} {span} was deleted while being merged")
        try:
            if not isinstance(reply.value, bytes):
                raise Corrupt(f"{kind.value.strip()} {span} is too large")  # noqa: TRY301 (counted)
            namespace = self._follower.namespace
            return (yield from work(partial(decode, reply.value, namespace, kind, *span)))
        except (Corrupt, Mismatch):
            self.counts.unreadable += 1
            raise

    def _delete(self, plan: CleanUp) -> Steps[None]:
        """Best effort; runs first go last, so that what is left is always readable."""
        ns = self._follower.namespace
        names = [keys.tick_key(ns, tick) for tick in plan.ticks]
        names += [keys.run_key(ns, *run) for run in plan.runs]
        for start in range(0, len(names), DELETE_MAX):
            yield from ask(Delete(tuple(names[start : start + DELETE_MAX])))
        self.counts.files_deleted += len(names)


@dataclass(frozen=True, slots=True)
class _Log:
    runs: dict[Span, Listed]
    ticks: dict[int, Listed]

    @property
    def newest(self) -> int:
        """The last tick that is in any of them, 0 for none."""
        return max((*self.ticks, *(hi for _, hi in self.runs)), default=0)


def _run_body(header: Header, parts: Sequence[RecordSet]) -> bytes:
    whole = merge(parts)
    # Whoever reads the run reads the watermark with it: what is left out cannot come back.
    return encode(header, whole.take(whole.seen_s >= header.watermark_s))
