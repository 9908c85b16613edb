"""How far the index forgets: one number, below which every last use means dead.

Pure. A chunk lives between ttl_s minus the touch interval and ttl_s after its last use, since a use
is written down only once per touch interval.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.records import TIME_MAX_S
from s3kv.core.snapshot import Snapshot

_BINS: Final = 4_096


def watermark_for(
    snapshot: Snapshot,
    now_unix_s: float,
    ttl_s: int | None,
    max_bytes: int | None,
    bytes_per_block: int,
    pinned: NDArray[np.uint64] | None = None,
) -> int:
    """The watermark to write: never below the snapshot's own, never beyond now.

    ttl_s, max_bytes: None for no such limit; pinned: uint64[k], sorted, chunks that do not die. The
    capacity limit forgets whole seconds of last use, oldest first, until what is left fits; pinned
    chunks take their room whatever their last use.
    """
    wanted_s = snapshot.watermark_s
    if ttl_s is not None:
        wanted_s = max(wanted_s, int(now_unix_s) - ttl_s)
    if max_bytes is not None and bytes_per_block > 0:
        live = snapshot.live()
        room = max_bytes // bytes_per_block
        if pinned is not None and len(pinned):
            stays = np.isin(live.fps, pinned)
            room -= int(live.blocks[stays].sum(dtype=np.int64))
            live = live.take(~stays)
        fitting_s = _oldest_fitting_s(live.seen_s, live.blocks, max(0, room))
        wanted_s = max(wanted_s, fitting_s)
    # A record from a fast clock must not drag the watermark over what others store right now.
    bound_s = min(int(now_unix_s), TIME_MAX_S)
    return max(snapshot.watermark_s, min(wanted_s, bound_s))


def would_die(snapshot: Snapshot, watermark_s: int) -> bool:
    """Whether raising the watermark changes anything for anybody."""
    live = snapshot.live()
    return bool((live.seen_s < watermark_s).any())


def _oldest_fitting_s(
    seen_s: NDArray[np.uint32], blocks: NDArray[np.uint16], max_blocks: int
) -> int:
    """Least w such that the blocks last used at or after w are at most max_blocks; 0 if all fit.

    A histogram of last use, refined inside the one bin where the limit falls.
    """
    if int(blocks.sum(dtype=np.int64)) <= max_blocks:
        return 0
    room = max_blocks
    while True:
        low, high = int(seen_s.min()), int(seen_s.max())
        width = (high - low) // _BINS + 1
        bins = (seen_s - np.uint32(low)) // np.uint32(width)
        per_bin = np.bincount(bins, weights=blocks).astype(np.int64)
        kept = np.cumsum(per_bin[::-1])[::-1]
        split = int(np.flatnonzero(kept > room)[-1])  # the newest bin that does not fit whole
        room -= int(kept[split + 1]) if split + 1 < len(kept) else 0
        if width == 1:
            return low + split + 1
        inside = bins == split
        seen_s, blocks = seen_s[inside], blocks[inside]
