"""The index as one reader knows it at one moment: immutable, replaced whole, read by any thread.

A large packed base plus a small set of recent records, each of which is the winner for its
fingerprint: so a look-up is two searches and news cost a small merge. Laying the recent records
over the base is work for another thread (`settled_base`); what arrives meanwhile stays recent
(`rebased`). An index is a hint; `is_fresh` says whether it may be acted on at all (R8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.packed import NOTHING, Found, PackedRecords, look_up
from s3kv.core.records import (
    DEAD,
    EMPTY,
    TIME_MAX_S,
    RecordSet,
    make_records,
    merge,
    overlay,
    without,
)

RECENT_MAX: Final = 65_536
"""Recent records before they are laid over the base: balances one copy against many merges."""


@dataclass(frozen=True, slots=True)
class Pause:
    """What the whole fleet is asked not to do for now."""

    loads: bool = False
    saves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """One state of the index.

    base, recent: see above; head: number of the newest tick read, 0 for none; head_seen_s: when it
    was last proved to be the newest (monotonic seconds, -inf for never); head_ttl_s: how long that
    proof holds; opened: the log was read to its head once; incomplete: a part of the log could not
    be read, so absence proves little; watermark_s: chunks last used before are dead.
    """

    base: PackedRecords = NOTHING
    recent: RecordSet = EMPTY
    head: int = 0
    head_seen_s: float = float("-inf")
    head_ttl_s: float = 60.0
    opened: bool = False
    incomplete: bool = False
    pause: Pause = Pause()
    watermark_s: int = 0

    def is_fresh(self, now_monotonic_s: float) -> bool:
        """Whether hits and misses may be answered, and touches made, from this snapshot (R8)."""
        return self.opened and now_monotonic_s - self.head_seen_s < self.head_ttl_s

    def present(self, fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[k]: which of uint64[k] fingerprints are live."""
        return self._present(fps)[1]

    def dead(self, fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[k]: known, but reported dead or below the watermark: rewrite it, trust no HEAD."""
        known, alive = self._present(fps)
        return known & ~alive

    def stale_use(
        self, fps: NDArray[np.uint64], now_unix_s: float, touch_s: float
    ) -> NDArray[np.uint64]:
        """Those of the present fingerprints whose last use lies more than touch_s back."""
        found = self.look_up(fps)
        stale: NDArray[np.uint64] = fps[
            found.live(self.watermark_s) & (found.seen_s < now_unix_s - touch_s)
        ]
        return stale

    def look_up(self, fps: NDArray[np.uint64]) -> Found:
        """What is known of uint64[k] fingerprints, dead or alive."""
        found = self.base.look_up(fps)
        return look_up(self.recent, fps).or_else(found) if len(self.recent) else found

    def whole(self) -> RecordSet:
        """All records in order, dead ones too. Copies: for tools, not for look-ups."""
        return self.base.overlaid(self.recent).whole()

    def live(self) -> RecordSet:
        """All live records in order. Copies: for tools and the watermark, not for look-ups."""
        whole = self.whole()
        return whole.take(whole.live(self.watermark_s))

    def absorb(self, news: RecordSet, recent_max: int = RECENT_MAX) -> Snapshot:
        """This snapshot after the news, which may be old, repeated, or both.

        recent_max: with more recent records the base is made anew, which takes long.
        """
        if not len(news):
            return self
        if len(self.recent) + len(news) > recent_max:
            base = self.settled_base(news, self.watermark_s)
            return replace(self, base=base, recent=EMPTY)
        return replace(self, recent=self._winners(news))

    def settled_base(self, news: RecordSet, watermark_s: int) -> PackedRecords:
        """All records, the news among them, as a base. Takes long: not for the loop thread.

        watermark_s: not less than that of this snapshot. Below it every record is dead for
        everybody, whatever it says, and is left out.
        """
        return self.base.overlaid(self._winners(news)).since(watermark_s)

    def rebased(self, before: Snapshot, base: PackedRecords) -> Snapshot:
        """This snapshot on the base that an earlier one was settled into; quick.

        before: this snapshot as it was then. What came since stays recent.
        """
        if self.base is not before.base:
            return self.absorb(base.whole())  # so much came that somebody could not wait
        settled = replace(self, base=base, recent=EMPTY)
        return replace(settled, recent=settled._winners(without(self.recent, before.recent)))

    def _present(self, fps: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Known, and live: on the scheduling thread for every request, hence not `look_up`."""
        known, alive = self.base.present(fps, self.watermark_s)
        if not len(self.recent):
            return known, alive
        recent, recent_alive = self.recent.present(fps, self.watermark_s)
        return known | recent, np.where(recent, recent_alive, alive)

    def _winners(self, news: RecordSet) -> RecordSet:
        """What is recent after the news: costs as much as there are news, and a copy."""
        at, known = self.base.find(news.fps)
        recent_at, is_recent = self.recent.find(news.fps)
        rivals = (self.base.take(at[known]), self.recent.take(recent_at[is_recent]))
        winners = merge((news, *rivals))
        return overlay(self.recent, winners) if len(self.recent) else winners

    def live_records(
        self, fps: NDArray[np.uint64], blocks: NDArray[np.uint16], now_unix_s: float
    ) -> RecordSet:
        """Records of use now: they win over all this snapshot knows, dead reports included.

        Clocks differ between machines; a record that loses the merge, or lies below the watermark
        of a faster clock, would be forgotten at once.
        """
        found = self.look_up(fps)
        known_s = found.seen_s.astype(np.int64) + (found.flags & DEAD)
        least_s = max(int(now_unix_s), self.watermark_s)
        seen_s = np.clip(np.maximum(known_s, least_s), 0, TIME_MAX_S)
        return make_records(fps, seen_s, blocks)

    def dead_records(self, fps: NDArray[np.uint64], now_unix_s: float) -> RecordSet:
        """Reports that shards are gone or bad: they win over all this snapshot knows."""
        seen_s = np.maximum(self.look_up(fps).seen_s.astype(np.int64), int(now_unix_s))
        return make_records(fps, np.clip(seen_s, 0, TIME_MAX_S), 0, DEAD)
