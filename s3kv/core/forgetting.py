"""How far a sequencer's next tick forgets, and what it calls used so that pinned sets survive.

Pure; the work of a large archive, so sequencers have it done off the loop thread. Rule upheld
here: no watermark is planned that kills a pinned chunk which the same plan does not touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from s3kv.core.records import EMPTY, RecordSet
from s3kv.core.snapshot import Snapshot
from s3kv.core.watermark import watermark_for, would_die


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """ttl_s, max_bytes: None for unlimited; bytes_per_block: of all writers together."""

    ttl_s: int | None = None
    max_bytes: int | None = None
    bytes_per_block: int = 0

    @property
    def are_set(self) -> bool:
        """Whether anything is ever forgotten."""
        return self.ttl_s is not None or self.max_bytes is not None


@dataclass(frozen=True, slots=True)
class Forgetting:
    """watermark_s: for the next tick; touches: records that must be in it; kills: whether anybody
    notices the watermark."""

    watermark_s: int = 0
    touches: RecordSet = EMPTY
    kills: bool = False

    @property
    def is_news(self) -> bool:
        """Whether a tick should be written for it alone."""
        return self.kills or len(self.touches) > 0


def plan_forgetting(
    snapshot: Snapshot,
    news: RecordSet,
    now_unix_s: float,
    limits: Limits,
    pinned: NDArray[np.uint64],
    touches_max: int,
) -> Forgetting:
    """Plan for what is known after the news.

    pinned: uint64[n], sorted. Where more than touches_max pinned chunks are due, as many are
    touched and the watermark stays where it is: the rest follows with the next ticks.
    """
    after = snapshot.absorb(news)
    wanted_s = watermark_for(
        after, now_unix_s, limits.ttl_s, limits.max_bytes, limits.bytes_per_block, pinned
    )
    touches = _due_touches(after, pinned, wanted_s, now_unix_s) if len(pinned) else EMPTY
    if len(touches) > touches_max:
        return Forgetting(snapshot.watermark_s, touches.take(slice(0, touches_max)), kills=False)
    return Forgetting(wanted_s, touches, would_die(after.absorb(touches), wanted_s))


def _due_touches(
    snapshot: Snapshot, pinned: NDArray[np.uint64], watermark_s: int, now_unix_s: float
) -> RecordSet:
    live = snapshot.live()
    at, known = live.find(pinned)
    fps, seen_s, blocks = pinned[known], live.seen_s[at[known]], live.blocks[at[known]]
    # Earlier than needed, so that not every raise of the watermark writes a handful of them.
    soon_s = watermark_s + max(0.0, now_unix_s - watermark_s) / 2
    if not (seen_s < watermark_s).any():
        return EMPTY
    due = seen_s < soon_s
    return snapshot.live_records(fps[due], blocks[due], now_unix_s)
