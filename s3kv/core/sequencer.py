"""Writes the index log: segments, and ticks that fold everybody's segments.

Rules upheld here: a segment, or a tick with own records, is announced as durable only after its
request succeeded; segments are deleted only after their tick exists (R2). Putting tick `head + 1`
if it is absent is commit, election and fence in one: the signer of the newest tick leads, whoever
loses the slot reads it and steps down. A success that took longer than a proof of the head holds is
not believed, since a cleaned-up slot looks empty (R3). What was true when records were made is not
true for ever: no request carries them after their `by_s` (R5), however long a call sleeps. What
happens twice does no harm: merging does not mind.

Sans-IO (see `requests`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from s3kv.core import keys
from s3kv.core.follower import Follower
from s3kv.core.forgetting import Forgetting, Limits, plan_forgetting
from s3kv.core.inbox import Fold, Inbox
from s3kv.core.indexfile import Header, Kind, encode, max_file_bytes
from s3kv.core.pins import Pins
from s3kv.core.records import EMPTY, RECORDS_MAX, TIME_MAX_S, RecordSet, merge
from s3kv.core.requests import Create, Created, Get, Listed, Moment, Put, Stat, Steps, ask, work
from s3kv.errors import Denied, Transient

ATTEMPTS: Final = 8
"""Slots tried in one call before `Transient`."""

AGE_ROUNDING_S: Final = 2.0
"""Stores tell times and ages in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerSettings:
    """takes_lead: lead at once and always, for a process that does nothing else. The other fields
    are the protocol's constants."""

    limits: Limits = field(default_factory=Limits)
    takes_lead: bool = False
    fold_busy_s: float = 1.0
    fold_idle_s: float = 5.0
    busy_for_s: float = 60.0  # after news, folding goes on at the busy rate this long
    patience_s: float = 2.0  # a segment older than this plus U(0, spread) has no sequencer
    patience_spread_s: float = 2.0
    recheck_min_s: float = 0.5
    inbox_check_s: float = 60.0
    watermark_check_s: float = 60.0
    announce_s: float = 1_800.0  # min_age_s / 2: how long what was true of shards may be told (R5)
    drop_unreadable_s: float = 3_600.0
    segments_per_s: float = 30.0  # what folding costs inside an engine: 2 ms of CPU each
    interval_min_ms: int = 1_000


class Sequencer:
    """The writing side of one process; shares `follower` with its reading side.

    One generator of `follower` or of this class may run at a time; `write_segment` alone may run
    beside another.
    """

    def __init__(
        self,
        follower: Follower,
        writer: bytes,
        settings: SequencerSettings,
        rng: random.Random,
    ) -> None:
        """writer: 16 bytes, random per process; rng: spreads take-overs in time."""
        self.follower = follower
        self.writer = writer
        self.tick_count = 0
        self.takeover_count = 0
        self.distrust_count = 0
        self._settings = settings
        self._rng = rng
        self._inbox = Inbox(follower.namespace, settings.drop_unreadable_s)
        self._seq = 0
        self._news_s = self._fold_at_s = self._segment_s = self._watched_s = -math.inf
        self._routine_at_s = -math.inf
        self._segment_check_at_s = math.inf
        self._resyncs_checked = -1
        self.pins = Pins(follower.namespace)
        self._planned_at_s = self._asked_lead_s = -math.inf
        self._forgetting = Forgetting()
        self._patience_s = self._new_patience()

    @property
    def leads(self) -> bool:
        """Whether the newest tick that we know is ours."""
        return self.follower.leader == self.writer

    @property
    def folded_count(self) -> int:
        """Segments done with since the start: they are in a tick."""
        return self._inbox.folded_count

    def active_writers(self, now_s: float) -> int:
        """Processes whose segments were read within the last busy_for_s."""
        return self._inbox.writer_count(now_s - self._settings.busy_for_s)

    def due(self, now_s: float) -> float:
        """When (monotonic seconds, perhaps past) `act` has something to do."""
        if self.leads:
            return self._fold_at_s
        if self._settings.takes_lead:
            return self._asked_lead_s + self._patience_s
        if self.follower.resync_count != self._resyncs_checked:
            return now_s
        return min(self._routine_at_s, self._segment_check_at_s)

    def act(self, now: Moment) -> Steps[None]:
        """Do what is due: fold if we lead, else look whether somebody should.

        Raises `Transient`, `Denied`; either may be followed by another `act` later.
        """
        if self.leads:
            yield from self.sequence(now)
        elif self._settings.takes_lead:
            # Two of this kind take turns, at their patience, until one is ended.
            self._asked_lead_s, self._patience_s = now.monotonic_s, self._new_patience()
            yield from self.sequence(now, says_nothing=True)
        else:
            yield from self._look_after_inbox(now)

    def flush(self, records: RecordSet, now: Moment, by_s: float = math.inf) -> Steps[None]:
        """Make records (at most `RECORDS_MAX`) durable; they are when this returns.

        by_s: monotonic seconds after which no request may carry them any more (R5). Raises
        `Transient` if it is unknown whether they are durable, `Denied` if they cannot be: flushing
        them again, alone or with others, is harmless.
        """
        if not len(records):
            return
        if self.leads:
            yield from self.sequence(now, records, by_s=by_s)
        else:
            yield from self.write_segment(records, now, by_s)

    def write_segment(self, records: RecordSet, now: Moment, by_s: float = math.inf) -> Steps[None]:
        """Commit by a segment of our own, whoever leads: one request. Raises as `flush`."""
        # A new name each time: under one name there must never be two contents, or a sequencer
        # could delete the one that it has not read.
        self._seq += 1
        seq = self._seq
        header = self._header(Kind.SEGMENT, seq, now, self.follower.snapshot.watermark_s, 0)
        key = keys.segment_key(self.follower.namespace, self.writer, seq)
        reply = yield from ask(Put(key, encode(header, records), by_s))
        self.follower.note(records)
        self._segment_s = reply.received_s
        if self._segment_check_at_s == math.inf:
            self._watched_s = reply.received_s
            self._segment_check_at_s = reply.received_s + self._patience_s

    def sequence(
        self,
        now: Moment,
        own: RecordSet = EMPTY,
        *,
        pause_bits: int | None = None,
        says_nothing: bool = False,
        by_s: float = math.inf,
    ) -> Steps[None]:
        """Fold the inbox, and own records, into the next tick; durable when this returns.

        pause_bits: None repeats the newest tick's; by_s: as for `flush`. Writes nothing if there is
        nothing to say, unless says_nothing asks for an empty tick, to lead. Raises as `flush`.
        """
        follower = self.follower
        now_s = now.monotonic_s
        for _ in range(ATTEMPTS):
            if now_s - follower.snapshot.head_seen_s > follower.snapshot.head_ttl_s / 2:
                yield from follower.poll()
            fold = yield from self._inbox.read(own)
            forgetting = yield from self._planned_forgetting(now, now_s, fold.records)
            bits = follower.pause_bits if pause_bits is None else pause_bits
            is_news = len(fold.records) or bits != follower.pause_bits or forgetting.is_news
            if not (is_news or says_nothing):
                self._plan_next_fold(now_s, fold)
                yield from self._inbox.delete(fold.keys)
                return
            number = follower.snapshot.head + 1
            watermark_s = max(forgetting.watermark_s, follower.snapshot.watermark_s)
            header = self._header(Kind.TICK, number, now, watermark_s, bits)
            records = merge((fold.records, forgetting.touches))
            if len(forgetting.touches):
                by_s = min(by_s, self._planned_at_s + self._settings.announce_s)
            made = yield from self._create_tick(header, records, by_s)
            now_s = made.received_s
            if made.is_ours:
                self._forgetting = Forgetting(watermark_s)
                self._plan_next_fold(now_s, fold)
                yield from self._inbox.delete(fold.keys)
                return
            yield from follower.poll()
            must_win = made.is_doubtful or says_nothing or pause_bits is not None
            if not (self.leads or must_win):
                if len(own):
                    yield from self.write_segment(own, now, by_s)
                return
        raise Transient(f"lost the next tick {ATTEMPTS} times")

    def _create_tick(self, header: Header, records: RecordSet, by_s: float) -> Steps[_Creation]:
        """Try to make the next tick, and stand on it if it is ours beyond doubt."""
        head_seen_s = self.follower.snapshot.head_seen_s
        key = keys.tick_key(self.follower.namespace, header.hi)
        body = encode(header, records)
        reply = yield from ask(Create(key, body, by_s))
        # Created: nothing can have followed when the request went out. A retry that finds our own
        # tick does not know when the attempt that made it went out.
        proof_s = reply.sent_s
        if not isinstance(reply.value, Created):
            proof_s = head_seen_s
            reply = yield from ask(Get(key, max_file_bytes(Kind.TICK)))
            if reply.value != body:
                return _Creation(False, False, reply.received_s)
        if not self._believes(head_seen_s, reply.received_s):
            self.distrust_count += 1
            self.follower.distrust()
            return _Creation(False, True, reply.received_s)
        self.follower.adopt(header, records, proof_s)
        self.tick_count += 1
        return _Creation(True, False, reply.received_s)

    def _believes(self, head_seen_s: float, now_s: float) -> bool:
        """Whether the slot was surely the head's next and not a cleaned-up one (R3)."""
        return now_s - head_seen_s <= self.follower.snapshot.head_ttl_s

    def _look_after_inbox(self, now: Moment) -> Steps[None]:
        """Take over if some segment, ours or not, has waited too long."""
        routine = (
            now.monotonic_s >= self._routine_at_s
            or self.follower.resync_count != self._resyncs_checked
        )
        if not routine and self._is_looked_after(now.monotonic_s):
            return
        resyncs = self.follower.resync_count
        waiting = yield from self._inbox.oldest()
        self._resyncs_checked = resyncs
        self._routine_at_s = waiting.at_s + self._settings.inbox_check_s
        if waiting.age_s is None:
            self._segment_check_at_s = math.inf
        elif waiting.age_s <= self._patience_s:
            # Ages come in whole seconds from most stores: do not ask again at once.
            wait_s = max(self._patience_s - waiting.age_s, self._settings.recheck_min_s)
            self._segment_check_at_s = waiting.at_s + wait_s
        else:
            self._patience_s = self._new_patience()
            self._segment_check_at_s = waiting.at_s + self._patience_s
            yield from self.sequence(now)
            self.takeover_count += self.leads

    def _is_looked_after(self, now_s: float) -> bool:
        """Whether somebody folds, as far as ticks tell; sets when to ask again.

        A tick may have been on its way when our segment was written: only one that comes a while
        later has surely folded it. While ticks come a stream of commits costs no listing.
        """
        tick_s = self.follower.tick_seen_s
        if tick_s > self._segment_s + self._patience_s:
            self._segment_check_at_s = math.inf
            return True
        due_s = max(self._watched_s, tick_s) + self._patience_s
        self._segment_check_at_s = max(due_s, now_s)
        return due_s > now_s

    def _header(
        self, kind: Kind, number: int, now: Moment, watermark_s: int, pause_bits: int
    ) -> Header:
        writers = self.active_writers(now.monotonic_s)
        interval_ms = math.ceil(writers / self._settings.segments_per_s * 1_000)
        return Header(
            kind=kind,
            namespace=self.follower.namespace,
            lo=number,
            hi=number,
            writer=self.writer,
            watermark_s=watermark_s,
            interval_ms=max(self._settings.interval_min_ms, interval_ms),
            created_s=min(int(now.unix_s), TIME_MAX_S),
            pause_bits=pause_bits,
        )

    def _planned_forgetting(self, now: Moment, now_s: float, news: RecordSet) -> Steps[Forgetting]:
        """How far the next tick forgets; the archive is measured at most once a minute.

        The plan stands until its tick is made, so that a watermark never goes without its touches.
        """
        settings, snapshot = self._settings, self.follower.snapshot
        if now_s - self._planned_at_s >= settings.watermark_check_s:
            self._planned_at_s, self._forgetting = now_s, Forgetting()
            unix_s = now.unix_s + now_s - now.monotonic_s
            if settings.limits.are_set and (yield from self._know_pins()):
                unix_s = min(unix_s, (yield from self._store_unix_s(unix_s)))
                room = RECORDS_MAX - len(news)
                self._forgetting = yield from work(
                    partial(
                        plan_forgetting,
                        snapshot,
                        news,
                        unix_s,
                        settings.limits,
                        self.pins.fps,
                        room,
                    )
                )
        if len(news) + len(self._forgetting.touches) > RECORDS_MAX:
            return Forgetting(snapshot.watermark_s)  # no room in this tick: the next one
        return self._forgetting

    def _store_unix_s(self, own_s: float) -> Steps[float]:
        """The store's clock, so that one that is fast here kills nothing early; ours if unknown."""
        try:
            reply = yield from ask(Stat(keys.namespace_key(self.follower.namespace)))
        except (Transient, Denied):
            return own_s
        found = reply.value
        if not isinstance(found, Listed) or found.age_s <= 0:
            return own_s  # it does not tell
        return found.modified_s + found.age_s + AGE_ROUNDING_S

    def _know_pins(self) -> Steps[bool]:
        """Whether all pinned sets could be read. If not, commits go on and nothing is forgotten."""
        try:
            yield from self.pins.refresh()
        except (Transient, Denied):
            return False
        return self.pins.complete

    def _plan_next_fold(self, now_s: float, fold: Fold) -> None:
        settings = self._settings
        if len(fold.records):
            self._news_s = now_s
        busy = now_s - self._news_s < settings.busy_for_s
        # A process that does nothing else keeps the lead: it folds before anybody runs out of
        # patience ($13 a month).
        wait_s = settings.fold_busy_s if busy or settings.takes_lead else settings.fold_idle_s
        self._fold_at_s = now_s if fold.has_more else now_s + wait_s

    def _new_patience(self) -> float:
        spread_s = self._settings.patience_spread_s
        return self._settings.patience_s + self._rng.uniform(0.0, spread_s)


@dataclass(frozen=True, slots=True)
class _Creation:
    """is_ours: we stand on our tick; is_doubtful: it was made, but perhaps in a forgotten slot."""

    is_ours: bool
    is_doubtful: bool
    received_s: float
