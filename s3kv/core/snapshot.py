"""The index as one reader knows it at one moment: immutable, replaced whole, read by any thread.

A large sorted base plus a small set of recent records, each of which is the winner for its
fingerprint: so a look-up is two binary searches and news cost a small merge. An index is a hint;
`is_fresh` says whether it may be acted on at all (R8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.records import (
    DEAD,
    EMPTY,
    TIME_MAX_S,
    RecordSet,
    make_records,
    merge,
    overlay,
)

RECENT_MAX: Final = 16_384
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

    base: RecordSet = EMPTY
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
        there = np.zeros(len(fps), np.bool_)
        for part in (self.base, self.recent):
            if len(part):
                at, known = part.find(fps)
                alive = (part.flags[at] & DEAD == 0) & (part.seen_s[at] >= self.watermark_s)
                there = np.where(known, alive, there)
        return there

    def dead(self, fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[k]: known, but reported dead or below the watermark: rewrite it, trust no HEAD."""
        known = self.base.find(fps)[1] | self.recent.find(fps)[1]
        return known & ~self.present(fps)

    def stale_use(
        self, fps: NDArray[np.uint64], now_unix_s: float, touch_s: float
    ) -> NDArray[np.uint64]:
        """Those of the present fingerprints whose last use lies more than touch_s back."""
        seen_s = self._seen_s(fps)
        stale: NDArray[np.uint64] = fps[self.present(fps) & (seen_s < now_unix_s - touch_s)]
        return stale

    def live(self) -> RecordSet:
        """All live records in order. Copies: for tools and the watermark, not for look-ups."""
        whole = overlay(self.base, self.recent)
        return whole.take(whole.live(self.watermark_s))

    def absorb(self, news: RecordSet) -> Snapshot:
        """This snapshot after the news, which may be old, repeated, or both."""
        if not len(news):
            return self
        if len(news) > RECENT_MAX:
            return self._settled(merge((overlay(self.base, self.recent), news)))
        at, known = self.base.find(news.fps)
        recent = merge((self.recent, news, self.base.take(at[known])))
        if len(recent) > RECENT_MAX:
            return self._settled(overlay(self.base, recent))
        return replace(self, recent=recent)

    def live_records(
        self, fps: NDArray[np.uint64], blocks: NDArray[np.uint16], now_unix_s: float
    ) -> RecordSet:
        """Records of use now: they win over all this snapshot knows, dead reports included.

        Clocks differ between machines; a record that loses the merge would be forgotten at once.
        """
        known_s = self._seen_s(fps).astype(np.int64) + self._reported(fps)
        seen_s = np.clip(np.maximum(known_s, int(now_unix_s)), 0, TIME_MAX_S)
        return make_records(fps, seen_s, blocks)

    def dead_records(self, fps: NDArray[np.uint64], now_unix_s: float) -> RecordSet:
        """Reports that shards are gone or bad: they win over all this snapshot knows."""
        seen_s = np.maximum(self._seen_s(fps).astype(np.int64), int(now_unix_s))
        return make_records(fps, np.clip(seen_s, 0, TIME_MAX_S), 0, DEAD)

    def _seen_s(self, fps: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """uint32[k]: last use as known, 0 for unknown fingerprints."""
        seen_s = np.zeros(len(fps), np.uint32)
        for part in (self.base, self.recent):
            if len(part):
                at, known = part.find(fps)
                seen_s = np.where(known, part.seen_s[at], seen_s)
        return seen_s

    def _reported(self, fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        flagged = np.zeros(len(fps), np.bool_)
        for part in (self.base, self.recent):
            if len(part):
                at, known = part.find(fps)
                flagged = np.where(known, part.flags[at] & DEAD != 0, flagged)
        return flagged

    def _settled(self, whole: RecordSet) -> Snapshot:
        # Below the watermark every record is dead for everybody, whatever it says.
        return replace(self, base=whole.take(whole.seen_s >= self.watermark_s), recent=EMPTY)
