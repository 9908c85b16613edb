"""One size limit for several namespaces: how far all of them forget, least recently used first.

Pure. Last uses are Unix seconds in every namespace, so one cutoff orders the chunks of all of them.
A sweep makes it the watermark of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.records import TIME_MAX_S, RecordSet

_LAST_CUTOFF_S: Final = TIME_MAX_S + 1
"""Nothing can have been used at or after it."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one namespace takes of the size limit.

    seen_s: uint32[n] and blocks: uint16[n] of the live chunks that may be forgotten;
    bytes_per_block: of all writers together; fixed_bytes: of chunks that stay whatever their age.
    """

    seen_s: NDArray[np.uint32]
    blocks: NDArray[np.uint16]
    bytes_per_block: int
    fixed_bytes: int = 0

    def bytes_since(self, cutoff_s: int) -> int:
        """Bytes that stay if everything last used before the cutoff goes."""
        used = self.blocks[self.seen_s >= cutoff_s].sum(dtype=np.int64)
        return self.fixed_bytes + int(used) * self.bytes_per_block


def share_of(live: RecordSet, pinned: NDArray[np.uint64], bytes_per_block: int) -> Share:
    """The share of a namespace with these live records. pinned: uint64[k], fingerprints."""
    stays = np.isin(live.fps, pinned)
    fixed_bytes = int(live.blocks[stays].sum(dtype=np.int64)) * bytes_per_block
    return Share(live.seen_s[~stays], live.blocks[~stays], bytes_per_block, fixed_bytes)


def common_cutoff(shares: Sequence[Share], max_bytes: int) -> int:
    """Least Unix second such that what was used at or after it fits; 0 if everything fits.

    If the fixed bytes alone do not fit: the least one that leaves nothing else.
    """
    room = max(max_bytes, sum(share.fixed_bytes for share in shares))
    if _bytes_since(shares, 0) <= room:
        return 0
    # The bytes that stay fall with the cutoff: halve the interval that holds the step.
    too_early_s, late_enough_s = 0, _LAST_CUTOFF_S
    while late_enough_s - too_early_s > 1:
        middle_s = (too_early_s + late_enough_s) // 2
        if _bytes_since(shares, middle_s) <= room:
            late_enough_s = middle_s
        else:
            too_early_s = middle_s
    return late_enough_s


def _bytes_since(shares: Sequence[Share], cutoff_s: int) -> int:
    return sum(share.bytes_since(cutoff_s) for share in shares)
