"""Which files of the index log to read, to merge into a run, and to delete: pure plans over names.

Rules upheld here: no plan leaves a tick in no run and no tick file, nor a starter with less of the
log than before; only what runs older than the margin repeat is cleaned up, since a younger one may
be unknown to who is reading right now (R7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from s3kv.core.requests import Listed

MERGE_RATIO: Final = 4
"""A left neighbour is merged again when it is less than this many times what joins it: a record is
rewritten a few times in its life, and runs stay few."""

MERGE_BYTES_MAX: Final = 512 << 20
"""Bytes read for one run: bounds memory; the rest is merged next time."""

BRIDGED_MAX: Final = 10_000
"""Files merged at once behind a hole: bounds the requests of one look."""

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


@dataclass(frozen=True, slots=True)
class Merging:
    """A run to be written over the ticks lo..hi: the runs and ticks that make it up.

    bridge: its first and last tick, where not all of them are left.
    """

    runs: tuple[Span, ...]
    ticks: tuple[int, ...]
    bridge: Span | None = None

    @property
    def span(self) -> Span:
        """First and last tick of the new run."""
        if self.bridge is not None:
            return self.bridge
        return min((self.ticks[0], *(lo for lo, _ in self.runs))), self.ticks[-1]


def plan_merging(
    runs: Mapping[Span, int], ticks: Mapping[int, int], ticks_min: int
) -> Merging | None:
    """What to merge, if at least ticks_min ticks lie behind the runs.

    runs, ticks: with their sizes in bytes. Left neighbours join while they are small.
    """
    cover, end = plan_cover(runs)
    loose: list[int] = []
    total_bytes = 0
    while end + 1 + len(loose) in ticks:
        size = ticks[end + 1 + len(loose)]
        if loose and total_bytes + size > MERGE_BYTES_MAX:
            break
        total_bytes += size
        loose.append(end + 1 + len(loose))
    if len(loose) < max(1, ticks_min):
        return None
    joined: list[Span] = []
    for run in reversed(cover):
        size = runs[run]
        if size >= MERGE_RATIO * total_bytes or total_bytes + size > MERGE_BYTES_MAX:
            break
        total_bytes += size
        joined.append(run)
    return Merging(tuple(reversed(joined)), tuple(loose))


def plan_bridging(
    runs: Mapping[Span, Listed], ticks: Mapping[int, Listed], margin_s: float
) -> Merging | None:
    """What to merge if ticks are missing for good: all that is left after them, as one run.

    So a log that somebody damaged is whole again, without what was lost. None if there is no hole,
    or if what follows it is younger than margin_s: a listing may race a clean-up.
    """
    cover, end = plan_cover(runs)
    near = end
    while near + 1 in ticks:
        near += 1
    far = [(run, found) for run, found in runs.items() if run[1] > end and run not in cover]
    far += [((tick, tick), found) for tick, found in ticks.items() if tick > near]
    if not far or min(far, key=lambda item: item[0])[1].age_s < margin_s:
        return None
    close = [((tick, tick), ticks[tick]) for tick in range(end + 1, near + 1)]
    taken: list[Span] = []
    total_bytes = 0
    for span, found in sorted([*close, *far], key=lambda item: item[0]):
        total_bytes += found.size
        if taken and (total_bytes > MERGE_BYTES_MAX or len(taken) >= BRIDGED_MAX):
            break
        taken.append(span)
    return Merging(
        tuple(span for span in taken if span in runs),
        tuple(span[0] for span in taken if span not in runs),
        bridge=(end + 1, max(span[1] for span in taken)),
    )


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Files of the log whose content others repeat.

    relies_on: the runs that repeat it; whoever deletes has to be sure that they can be read.
    """

    runs: tuple[Span, ...]
    ticks: tuple[int, ...]
    relies_on: tuple[Span, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be deleted."""
        return not (self.runs or self.ticks)


def plan_clean_up(
    runs: Mapping[Span, float], ticks: Collection[int], head: int, margin_s: float
) -> CleanUp:
    """What may be deleted. runs: with their age in seconds by the store's clock.

    The tick at `head` stays: it names who leads.
    """
    old = [run for run, age_s in runs.items() if age_s >= margin_s]
    safe_cover, safe_end = plan_cover(old)
    kept = {*safe_cover, *plan_cover(runs)[0]}
    return CleanUp(
        tuple(sorted(run for run in runs if run not in kept and run[1] <= safe_end)),
        tuple(sorted(tick for tick in ticks if tick <= safe_end and tick != head)),
        tuple(safe_cover),
    )


def _is_contiguous(head: int, ticks: Collection[int]) -> bool:
    return all(tick == head + 1 + i for i, tick in enumerate(ticks))
