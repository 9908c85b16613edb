"""Which runs to read: pure plans over the names in the index log.

Writing runs, compaction, clean-up and sweeping are not here yet; what they must keep to is in
docs/adr/0002-index-on-the-bucket.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A run's first and last tick."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What brings a reader from its head to the end of the log.

    runs in the order of their ticks, then ticks ascending; has_gap: some tick in between is in
    none of them.
    """

    runs: tuple[Span, ...]
    ticks: tuple[int, ...]
    has_gap: bool


def plan_cover(runs: Iterable[Span]) -> tuple[list[Span], int]:
    """Fewest runs that cover the ticks 1..end without a gap, and end (0 for none).

    Overlap is harmless: merging is idempotent.
    """
    left = list(runs)
    cover: list[Span] = []
    end = 0
    while True:
        fitting = [run for run in left if run[0] <= end + 1 and run[1] > end]
        if not fitting:
            return cover, end
        best = max(fitting, key=lambda run: (run[1], -run[0]))
        cover.append(best)
        end = best[1]


def plan_reading(head: int, runs: Collection[Span], ticks: Collection[int]) -> Reading:
    """What to read after tick `head`, given the names in a listing.

    A reader that starts (head 0) takes the runs first: they are few. One that comes back reads runs
    as soon as one goes beyond its head: from there on ticks may have been cleaned up, and a slot
    that was cleaned up may have been filled again by a writer that slept.
    """
    beyond = sorted(tick for tick in ticks if tick > head)
    if head and beyond and _is_contiguous(head, beyond) and not any(hi > head for _, hi in runs):
        return Reading((), tuple(beyond), has_gap=False)
    cover, end = plan_cover(runs)
    needed = tuple(run for run in cover if run[1] > head)
    rest = tuple(tick for tick in beyond if tick > end)
    if _is_contiguous(max(head, end), rest):
        return Reading(needed, rest, has_gap=False)
    # Something is gone for good, or vanishes right now: everything that is left is worth reading.
    every = tuple(sorted(run for run in runs if run[1] > head))
    return Reading(every, tuple(beyond), has_gap=True)


def _is_contiguous(head: int, ticks: Collection[int]) -> bool:
    return all(tick == head + 1 + i for i, tick in enumerate(ticks))
