"""Reads the index log: runs and ticks in their order, and the inbox where the log may be behind.

Rules upheld here: a 404 on the next tick means "this is the head" only to a reader who knew the
head a short while ago (R4): otherwise the tick may have existed and been cleaned up, and the log is
listed again. Segments are durable commits, so opening and resyncing read them too. What cannot be
read is skipped and counted, and the snapshot says that it is incomplete; but a file of a newer
format version ends it all (`NewerFormat`): to skip what others can read would be to deny it.

What takes long is done off the loop thread, and others may `note` meanwhile: a snapshot is replaced
by one assignment, made of what it is at that moment.

Sans-IO (see `requests`). A generator may be abandoned at any request: no state is half-changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from s3kv.core import keys
from s3kv.core.ids import NamespaceId
from s3kv.core.indexfile import FileName, Header, IndexFile, Kind, decode_all, max_file_bytes
from s3kv.core.maintenance import Reading, Span, plan_reading
from s3kv.core.packed import PackedRecords
from s3kv.core.records import EMPTY, RecordSet, merge
from s3kv.core.requests import (
    PARALLEL_MAX,
    Absent,
    Get,
    Listed,
    ListPrefix,
    Reply,
    Steps,
    ask_all,
    listed,
    work,
)
from s3kv.core.snapshot import RECENT_MAX, Pause, Snapshot
from s3kv.errors import Transient

RELIST_MAX: Final = 8
RESYNC_MAX: Final = 4
"""Attempts in one call before `Transient`: the log moves faster than we read, try later."""

INLINE_BYTES: Final = 1 << 20
"""Bytes of files decoded on the loop thread: a fraction of a millisecond."""

MERGED_MAX: Final = 1 << 20
"""Records merged with one another before they are laid over the base: bounds memory."""

UNSETTLED_FACTOR: Final = 4
"""Times recent_max: so many recent records do not wait for another thread any more."""

LOADS_BIT: Final = 1
SAVES_BIT: Final = 2


@dataclass(frozen=True, slots=True)
class _Listing:
    runs: frozenset[Span]
    ticks: frozenset[int]
    segments: tuple[Listed, ...]
    sent_s: float

    @property
    def newest(self) -> int:
        return max((*self.ticks, *(hi for _, hi in self.runs)), default=0)


class Follower:
    """The state of one reader, owned by one task; `snapshot` alone is read by others.

    leader: the process that signed the newest tick, if known; interval_ms: the newest advice on how
    often writers may commit; tick_seen_s: when another tick last arrived while polling.
    """

    def __init__(
        self, namespace: NamespaceId, head_ttl_s: float, recent_max: int = RECENT_MAX
    ) -> None:
        """Know nothing yet. recent_max: records beside the base before it is made anew."""
        self._recent_max = recent_max
        self.namespace = namespace
        self.snapshot = Snapshot(head_ttl_s=head_ttl_s)
        self.leader: bytes | None = None
        self.interval_ms = 0
        self.pause_bits = 0
        self.tick_seen_s = float("-inf")
        self._position_s = float("-inf")
        self.resync_count = 0
        self.skipped_count = 0

    def open(self) -> Steps[None]:
        """Read the whole log and the inbox, up to the head. Raises as `poll`."""
        yield from self.resync()
        yield from self.poll()

    def poll(self) -> Steps[None]:
        """Read what is new, until the head is proved.

        Raises `Transient`, `Denied`; `NewerFormat`: this build may not go on.
        """
        if len(self.snapshot.recent) > self._recent_max:
            yield from self._settle((), 0)
        width, full_count, resyncs = 1, 0, 0
        while True:
            first = self.snapshot.head + 1
            names = [keys.tick_key(self.namespace, first + i) for i in range(width)]
            tick_bytes = max_file_bytes(Kind.TICK)
            replies = yield from ask_all([Get(name, tick_bytes) for name in names])
            count = _leading_present(replies)
            if count and replies[0].sent_s - self._position_s > self.snapshot.head_ttl_s:
                # Not even a 200 is trusted after a long sleep: the slot may have been cleaned up
                # and filled again by another sleeper, and the tick that was there is in a run now.
                count, replies = 0, replies[:1]
            yield from self._read_ticks(range(first, first + count), replies[:count])
            if count:
                self._position_s = max(self._position_s, replies[count - 1].sent_s)
                self.tick_seen_s = replies[count - 1].received_s
            if count == len(replies):
                # One new tick is usual; two mean an outage: then read in ever larger bites.
                full_count += 1
                width = min(width * 2, PARALLEL_MAX) if full_count > 1 else 1
                continue
            missing = replies[count]
            has_hole = any(not isinstance(r.value, Absent) for r in replies[count:])
            if not has_hole and self._trusts(missing):
                self._confirm(missing.sent_s)
                return
            resyncs += 1
            if resyncs > RESYNC_MAX:
                raise Transient("the index log moves faster than it can be read")
            yield from self.resync()
            width, full_count = 1, 0

    def resync(self) -> Steps[None]:
        """List the log and read what is beyond our head; the inbox too."""
        self.resync_count += 1
        unreadable: set[Span] = set()
        had_gap = False
        for _ in range(RELIST_MAX):
            listing = yield from self._list()
            if listing.newest < self.snapshot.head:
                self._start_over()
            plan = plan_reading(self.snapshot.head, listing.runs - unreadable, listing.ticks)
            if plan.has_gap and not had_gap:
                had_gap = True  # perhaps only a clean-up between two pages: look again
                continue
            if not (yield from self._read_plan(plan, unreadable)):
                continue
            yield from self._read_inbox(listing.segments)
            if plan.has_gap:
                self._mark_incomplete()
            self._confirm(listing.sent_s)
            return
        raise Transient("the index log changed under every listing")

    def note(self, records: RecordSet) -> None:
        """Learn what this process knows already: its own commits, chunks it failed to load."""
        self._absorb(self.snapshot, records)

    def adopt(self, header: Header, records: RecordSet, head_seen_s: float) -> None:
        """Our own tick was created: it is the newest one now."""
        self._absorb(self._advanced([header], header.hi), records)
        self._confirm(head_seen_s)

    def renounce(self) -> None:
        """Nothing may be loaded or saved by this view any more."""
        self.snapshot = replace(self.snapshot, pause=Pause(loads=True, saves=True))

    def distrust(self) -> None:
        """Forget that the head was ever proved: the next 404 leads to a resync."""
        self.snapshot = replace(self.snapshot, head_seen_s=float("-inf"))
        self._position_s = float("-inf")

    def _trusts(self, missing: Reply) -> bool:
        """Whether this 404 can only mean that the tick was never made (R4)."""
        return missing.received_s - self.snapshot.head_seen_s <= self.snapshot.head_ttl_s

    def _confirm(self, sent_s: float) -> None:
        self._position_s = max(self._position_s, sent_s)
        seen_s = max(sent_s, self.snapshot.head_seen_s)
        self.snapshot = replace(self.snapshot, head_seen_s=seen_s, opened=True)

    def _mark_incomplete(self) -> None:
        self.snapshot = replace(self.snapshot, incomplete=True)

    def _start_over(self) -> None:
        """Our newest tick is not in the log any more: somebody emptied it and began anew."""
        self.snapshot = Snapshot(head_ttl_s=self.snapshot.head_ttl_s, opened=self.snapshot.opened)
        self.leader = None
        self.pause_bits = 0

    def _list(self) -> Steps[_Listing]:
        ns = self.namespace
        prefixes = (keys.run_prefix(ns), keys.tick_prefix(ns), keys.inbox_prefix(ns))
        replies = yield from ask_all([ListPrefix(prefix) for prefix in prefixes])
        runs, ticks, segments = (listed(reply) for reply in replies)
        spans = (keys.parse_run_key(found.key) for found in runs)
        numbers = (keys.parse_tick_key(found.key) for found in ticks)
        return _Listing(
            frozenset((name.lo, name.hi) for name in spans if name is not None),
            frozenset(name.tick for name in numbers if name is not None),
            segments,
            min(reply.sent_s for reply in replies),
        )

    def _read_plan(self, plan: Reading, unreadable: set[Span]) -> Steps[bool]:
        """Read runs, then ticks; False if the listing has to be made anew."""
        if not (yield from self._read_runs(plan.runs, unreadable)):
            return False
        ns = self.namespace
        for start in range(0, len(plan.ticks), PARALLEL_MAX):
            part = plan.ticks[start : start + PARALLEL_MAX]
            gets = [Get(keys.tick_key(ns, tick), max_file_bytes(Kind.TICK)) for tick in part]
            replies = yield from ask_all(gets)
            if _leading_present(replies) < len(replies):
                return False
            yield from self._read_ticks(part, replies)
        return True

    def _read_runs(self, runs: Sequence[Span], unreadable: set[Span]) -> Steps[bool]:
        ns, run_bytes = self.namespace, max_file_bytes(Kind.RUN)
        replies = yield from ask_all([Get(keys.run_key(ns, *run), run_bytes) for run in runs])
        if _leading_present(replies) < len(replies):
            return False
        files = yield from self._decoded(replies, [(Kind.RUN, *run) for run in runs])
        readable = [file for file in files if file is not None]
        if len(readable) < len(files):
            unreadable.update(run for run, file in zip(runs, files, strict=True) if file is None)
            return False
        if readable:
            yield from self._apply(readable, max(self.snapshot.head, *(hi for _, hi in runs)))
        return True

    def _read_ticks(self, numbers: Sequence[int], replies: Sequence[Reply]) -> Steps[None]:
        """Take in the ticks of these numbers, in their order."""
        if not numbers:
            return
        found = yield from self._decoded(replies, [(Kind.TICK, n, n) for n in numbers])
        readable = [file for file in found if file is not None]
        yield from self._apply(readable, max(numbers[-1], self.snapshot.head))
        self.leader = found[-1][0].writer if found[-1] is not None else None
        # Some stores keep an empty object when the client dies inside its PUT. Nobody was told that
        # such a tick was made, so it lacks nothing.
        if len(readable) + sum(reply.value == b"" for reply in replies) < len(found):
            self._mark_incomplete()

    def _read_inbox(self, segments: Sequence[Listed]) -> Steps[None]:
        """Merge every valid segment; one that is gone by now is in a tick that we shall read."""
        names = [keys.parse_segment_key(found.key) for found in segments]
        ours = [name for name in names if name is not None]
        segment_bytes = max_file_bytes(Kind.SEGMENT)
        for start in range(0, len(ours), PARALLEL_MAX):
            part = ours[start : start + PARALLEL_MAX]
            gets = [Get(keys.segment_key(*_fields(name)), segment_bytes) for name in part]
            replies = yield from ask_all(gets)
            there = [i for i, reply in enumerate(replies) if not isinstance(reply.value, Absent)]
            found = yield from self._decoded(
                [replies[i] for i in there],
                [(Kind.SEGMENT, part[i].seq, part[i].seq) for i in there],
            )
            news = [file[1] for file in found if file is not None]
            self.note((yield from self._few(news, 0)))

    def _decoded(
        self, replies: Sequence[Reply], names: Sequence[FileName]
    ) -> Steps[list[IndexFile | None]]:
        """Each file's content, or None (counted) if it cannot be read. Raises `NewerFormat`."""
        bodies = [r.value if isinstance(r.value, bytes) else None for r in replies]
        decoding = partial(decode_all, self.namespace, bodies, names)
        is_long = sum(len(body) for body in bodies if body is not None) > INLINE_BYTES
        files = (yield from work(decoding)) if is_long else decoding()
        self.skipped_count += sum(file is None for file in files)
        return files

    def _apply(self, files: Sequence[IndexFile], head: int) -> Steps[None]:
        """Merge the files, in their order, and stand at `head`."""
        headers = [header for header, _ in files]
        watermark_s = max((header.watermark_s for header in headers), default=0)
        news = yield from self._few([records for _, records in files], watermark_s)
        self._absorb(self._advanced(headers, head), news)

    def _few(self, parts: Sequence[RecordSet], watermark_s: int) -> Steps[RecordSet]:
        """The parts merged, if they are few records; else none, and they are in the base then.

        watermark_s: of the files that they come from.
        """
        count = sum(len(part) for part in parts)
        if not count or count + len(self.snapshot.recent) <= self._recent_max:
            return merge(parts)
        for batch in _batches(parts):
            yield from self._settle(batch, watermark_s)
        return EMPTY

    def _settle(self, news: Sequence[RecordSet], watermark_s: int) -> Steps[None]:
        """Make the base anew of what is known and the news, off the loop thread."""
        before = self.snapshot
        mark_s = max(watermark_s, before.watermark_s)
        base = yield from work(partial(_settled_base, before, news, mark_s))
        self.snapshot = self.snapshot.rebased(before, base)

    def _absorb(self, snapshot: Snapshot, news: RecordSet) -> None:
        """Publish it, after the news. Whoever polls settles; without polls there is a limit too."""
        self.snapshot = snapshot.absorb(news, UNSETTLED_FACTOR * self._recent_max)

    def _advanced(self, headers: Sequence[Header], head: int) -> Snapshot:
        """The snapshot after what stands in the headers of files, in their order."""
        if headers:
            newest = headers[-1]
            self.leader = newest.writer if newest.kind is Kind.TICK else None
            self.interval_ms = newest.interval_ms
            self.pause_bits = newest.pause_bits
        pause = Pause(bool(self.pause_bits & LOADS_BIT), bool(self.pause_bits & SAVES_BIT))
        marks = [header.watermark_s for header in headers]
        watermark_s = max(self.snapshot.watermark_s, *marks, 0)
        return replace(self.snapshot, head=head, pause=pause, watermark_s=watermark_s)


def _settled_base(snapshot: Snapshot, news: Sequence[RecordSet], watermark_s: int) -> PackedRecords:
    return snapshot.settled_base(merge(news), watermark_s)


def _batches(parts: Sequence[RecordSet]) -> Iterator[list[RecordSet]]:
    """The parts in their order, `MERGED_MAX` records at a time or a single larger part."""
    batch: list[RecordSet] = []
    for part in parts:
        if batch and sum(map(len, batch)) + len(part) > MERGED_MAX:
            yield batch
            batch = []
        batch.append(part)
    yield batch


def _leading_present(replies: Sequence[Reply]) -> int:
    """How many replies stand before the first 404."""
    for i, reply in enumerate(replies):
        if isinstance(reply.value, Absent):
            return i
    return len(replies)


def _fields(name: keys.SegmentName) -> tuple[NamespaceId, bytes, int]:
    return name.namespace, name.writer, name.seq
