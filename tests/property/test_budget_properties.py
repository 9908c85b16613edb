"""One cutoff for several namespaces, against a model that tries every second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from s3kv.core.budget import Share, common_cutoff, share_of
from s3kv.core.records import EMPTY, TIME_MAX_S, make_records


@dataclass(frozen=True)
class Chunk:
    seen_s: int
    blocks: int
    is_pinned: bool


@dataclass(frozen=True)
class Place:
    chunks: list[Chunk]
    bytes_per_block: int

    @property
    def share(self) -> Share:
        fps = np.arange(len(self.chunks), dtype=np.uint64)
        live = EMPTY
        if self.chunks:
            seen_s, blocks = zip(*((each.seen_s, each.blocks) for each in self.chunks), strict=True)
            live = make_records(fps, seen_s, blocks)
        pinned = fps[[each.is_pinned for each in self.chunks]] if self.chunks else fps
        return share_of(live, pinned, self.bytes_per_block)

    def bytes_after(self, cutoff_s: int) -> int:
        stay = [each for each in self.chunks if each.is_pinned or each.seen_s >= cutoff_s]
        return sum(each.blocks for each in stay) * self.bytes_per_block


TIMES = st.one_of(st.integers(0, 8), st.integers(TIME_MAX_S - 2, TIME_MAX_S))
CHUNKS = st.builds(
    Chunk, seen_s=TIMES, blocks=st.sampled_from([0, 1, 16, 65_535]), is_pinned=st.booleans()
)
PLACES = st.builds(
    Place, st.lists(CHUNKS, max_size=8), bytes_per_block=st.sampled_from([1, 3, 4 << 20])
)


def naive_cutoff(places: list[Place], max_bytes: int) -> int:
    """The first of all seconds at which something changes that fits, else the one that empties."""
    seconds = {each.seen_s + 1 for place in places for each in place.chunks if not each.is_pinned}
    left = {second: sum(place.bytes_after(second) for place in places) for second in {0, *seconds}}
    fitting = [second for second, kept_bytes in left.items() if kept_bytes <= max_bytes]
    least = [second for second, kept_bytes in left.items() if kept_bytes == min(left.values())]
    return min(fitting) if fitting else min(least)


@given(
    st.lists(PLACES, max_size=4),
    st.one_of(st.integers(0, 60), st.integers(0, 1 << 41)),
    st.floats(0, 1.2),
)
def test_the_cutoff_is_the_least_that_fits(
    places: list[Place], max_bytes: int, fraction: float
) -> None:
    total = sum(place.bytes_after(0) for place in places)
    for limit in (max_bytes, int(total * fraction)):
        cutoff_s = common_cutoff([place.share for place in places], limit)

        assert cutoff_s == naive_cutoff(places, limit)


@given(st.lists(PLACES, min_size=1, max_size=4), st.integers(0, 1 << 41))
def test_more_room_never_forgets_more(places: list[Place], max_bytes: int) -> None:
    shares = [place.share for place in places]

    assert common_cutoff(shares, max_bytes + 1) <= common_cutoff(shares, max_bytes)
