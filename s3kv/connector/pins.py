"""Pins: references on block-pool blocks that a save still reads.

A pinned block is not reused whatever happens to its request: finish, abort, preemption. Pins are
taken when a save is planned and dropped when every rank reported its copy, milliseconds later,
never after the network. Owned by the engine's scheduling thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


@dataclass(slots=True)
class _Pin:
    block_ids: tuple[int, ...]
    ranks_left: int
    since_s: float


class PinBoard:
    """Who holds which blocks."""

    def __init__(self, pool: BlockPool, world_size: int) -> None:
        """world_size: reports that it takes to drop a pin."""
        self._pool = pool
        self._world_size = world_size
        self._pins: dict[int, _Pin] = {}

    def __len__(self) -> int:
        """Saves whose blocks are pinned."""
        return len(self._pins)

    def any_younger_than(self, age_s: float, now_s: float) -> bool:
        """Whether a copy may still be reported soon; a lost report must not keep an engine busy."""
        return any(now_s - pin.since_s < age_s for pin in self._pins.values())

    def pin(self, job_id: int, block_ids: Sequence[int], now_s: float) -> None:
        """Hold the blocks of one save. Ids are unique and never the null block."""
        assert job_id not in self._pins
        self._pool.touch([self._pool.blocks[i] for i in block_ids])
        self._pins[job_id] = _Pin(tuple(block_ids), self._world_size, now_s)

    def staged(self, job_id: int, rank_count: int) -> None:
        """`rank_count` more ranks no longer read the blocks."""
        pin = self._pins.get(job_id)
        if pin is None:
            return
        pin.ranks_left -= rank_count
        if pin.ranks_left <= 0:
            self.drop(job_id)

    def drop(self, job_id: int) -> None:
        """Nobody reads the blocks of this save."""
        pin = self._pins.pop(job_id)
        # Last block first: it is the first that the pool may evict.
        self._pool.free_blocks([self._pool.blocks[i] for i in reversed(pin.block_ids)])
