"""What a sweep condemns, adopts, renews and leaves alone, folder by folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.core import keys
from s3kv.core.records import DEAD, RecordSet, make_records, merge
from s3kv.core.requests import Listed
from s3kv.core.sweep import FolderPlan, SweepRules, View, Why, plan_folder
from tests.fakes.index_store import NS

NOW_S = 1_000_000.0
HOUR_S = 3_600.0
RULES = SweepRules()
HELD_S, WATERMARK_S = 500_000, 600_000
"""The watermark that was in force for the whole grace, and the one of now."""

WRITERS = 2
BLOCKS = 16
SIZE = 1_000 * BLOCKS


def blocks_of(size: int) -> int | None:
    return size // 1_000 if size % 1_000 == 0 and 0 < size <= SIZE else None


def name_of(fp: int, writer: int = 0, writers: int = WRITERS) -> str:
    return keys.shard_key(NS, fp.to_bytes(8, "big") + bytes(24), writer, writers)


def shard(fp: int, writer: int = 0, age_s: float = 10 * HOUR_S, size: int = SIZE) -> Listed:
    return Listed(name_of(fp, writer), size, NOW_S - age_s, age_s, f"{fp}.{writer}")


def shards(fp: int, age_s: float = 10 * HOUR_S, size: int = SIZE) -> list[Listed]:
    return [shard(fp, writer, age_s, size) for writer in range(WRITERS)]


def used(fp: int, seen_s: float) -> RecordSet:
    return make_records([fp], int(seen_s), BLOCKS)


def lost(fp: int, seen_s: float) -> RecordSet:
    return make_records([fp], int(seen_s), 0, DEAD)


def plan(
    listing: Sequence[Listed],
    *records: RecordSet,
    pinned: Sequence[int] = (),
    rules: SweepRules = RULES,
    held_s: int = HELD_S,
) -> FolderPlan:
    view = View(merge(records), WATERMARK_S, held_s, np.array(sorted(pinned), np.uint64))
    return plan_folder("00", listing, view, blocks_of, rules)


def age_of(modified_s: float) -> float:
    return NOW_S - modified_s


OLD_S = age_of(HELD_S - 1)
"""Age of an object that was uploaded before the held watermark."""


def test_what_is_live_stays_however_old() -> None:
    done = plan(shards(1, OLD_S), used(1, WATERMARK_S))
    assert (done.condemned, done.kept_count, done.kept_bytes) == ([], WRITERS, WRITERS * SIZE)
    assert done.renew == []
    assert not len(done.lost)


def test_what_was_dead_for_the_whole_grace_goes() -> None:
    done = plan(shards(1, OLD_S), used(1, HELD_S - 1))
    assert done.delete == {Why.EXPIRED: shards(1, OLD_S)}


def test_what_a_younger_watermark_kills_waits_for_its_grace() -> None:
    """Who reads an older view may have used it a moment ago."""
    done = plan(shards(1, OLD_S), used(1, HELD_S))
    assert (done.condemned, done.waiting_count) == ([], WRITERS)


def test_a_shard_that_was_uploaded_since_is_not_condemned_with_its_old_record() -> None:
    """Somebody stores the chunk anew and has not announced it yet."""
    again = [shard(1, 0, age_of(HELD_S)), shard(1, 1, OLD_S)]
    done = plan(again, used(1, HELD_S - 1))
    assert done.delete == {Why.EXPIRED: again[1:]}
    assert done.waiting_count == 1


@pytest.mark.parametrize("records", [(), (used(1, 1),), (lost(1, 1),)])
def test_what_is_younger_than_the_minimum_age_never_goes(records: tuple[RecordSet, ...]) -> None:
    young = [shard(1, 0, HOUR_S - 1)]  # its chunk is not even whole
    done = plan(young, *records, held_s=int(NOW_S))
    assert (done.condemned, done.waiting_count) == ([], 1)
    assert not len(done.adopt)


def test_a_whole_chunk_that_is_young_is_left_to_who_stores_it() -> None:
    done = plan([shard(1, 0), shard(1, 1, HOUR_S - 1)])
    assert not len(done.adopt)
    assert done.waiting_count == WRITERS


def test_what_was_reported_lost_goes_an_hour_after_the_report() -> None:
    """By the store's clock; until then who reported it may be wrong or late."""
    reported_s = NOW_S - HOUR_S
    assert plan(shards(1), lost(1, reported_s - 1)).delete == {Why.LOST: shards(1)}
    assert plan(shards(1), lost(1, reported_s)).condemned == []


def test_a_loss_below_the_held_watermark_is_as_good_as_expired() -> None:
    assert plan(shards(1, OLD_S), lost(1, HELD_S - 1)).delete == {Why.EXPIRED: shards(1, OLD_S)}
    newer = plan(shards(1, age_of(HELD_S)), lost(1, HELD_S - 1))
    assert newer.condemned == []


def test_a_whole_chunk_that_nobody_lists_is_adopted_as_old_as_its_oldest_shard() -> None:
    mixed = [shard(1, 0, 2 * HOUR_S), shard(1, 1, 3 * HOUR_S)]
    done = plan(mixed)
    assert done.adopt.fps.tolist() == [1]
    assert done.adopt.seen_s.tolist() == [int(NOW_S - 3 * HOUR_S)]
    assert done.adopt.blocks.tolist() == [BLOCKS]
    assert done.kept_count == WRITERS


def test_a_tail_chunk_is_adopted_with_its_own_length() -> None:
    assert plan(shards(1, size=3_000)).adopt.blocks.tolist() == [3]


def test_nothing_is_adopted_that_another_sweep_condemns() -> None:
    """A shard from before the watermark: by it, the chunk is dead already."""
    done = plan([shard(1, 0), shard(1, 1, age_of(WATERMARK_S - 1))])
    assert not len(done.adopt)
    assert done.waiting_count == WRITERS
    assert plan(shards(1, OLD_S)).delete == {Why.EXPIRED: shards(1, OLD_S)}


def test_a_chunk_that_lacks_a_shard_goes_when_nobody_can_be_storing_it() -> None:
    assert plan([shard(1)]).delete == {Why.INCOMPLETE: [shard(1)]}


def test_an_empty_object_is_no_shard() -> None:
    """Some stores keep one when the client dies inside its PUT."""
    torn = [shard(1), shard(1, 1, size=0)]
    assert plan(torn).delete == {Why.INCOMPLETE: torn}
    listed = plan(torn, used(1, WATERMARK_S))
    assert listed.condemned == []
    assert listed.lost.fps.tolist() == [1]


def test_a_chunk_of_a_size_that_no_chunk_has_goes() -> None:
    odd = shards(1, size=SIZE + 1)
    assert plan(odd).delete == {Why.MISSHAPEN: odd}


def test_shards_of_another_number_of_writers_are_another_chunk() -> None:
    alone = Listed(name_of(1, 0, 1), SIZE, NOW_S - 10 * HOUR_S, 10 * HOUR_S, "x")
    done = plan([*shards(1), alone], used(1, WATERMARK_S))
    assert (done.condemned, done.kept_count) == ([], WRITERS + 1)
    assert not len(done.lost)


def test_a_listed_chunk_that_is_not_there_is_reported_as_old_as_its_use() -> None:
    """So that whoever uploads or uses it meanwhile wins."""
    done = plan([shard(2)], used(1, NOW_S - 5), used(2, NOW_S - 7), lost(3, NOW_S), used(4, 1))
    assert done.lost.fps.tolist() == [1, 2]
    assert done.lost.seen_s.tolist() == [int(NOW_S - 5), int(NOW_S - 7)]
    assert (done.lost.flags == DEAD).all()


def test_other_folders_are_not_reported_lost() -> None:
    assert not len(plan([], used(1 << 56, NOW_S)).lost)
    assert len(plan([], used((1 << 56) - 1, NOW_S)).lost)


def test_pinned_chunks_stay_whatever_is_known() -> None:
    for record in (used(1, 1), lost(1, 1)):
        done = plan(shards(1, OLD_S), record, pinned=[1])
        assert (done.condemned, done.kept_count) == ([], WRITERS)
        assert not len(done.adopt)


def test_a_pinned_chunk_that_nobody_lists_is_adopted_above_the_watermark() -> None:
    """So that a lost index does not lose what somebody wants to keep."""
    done = plan(shards(1, OLD_S), pinned=[1])
    assert done.adopt.seen_s.tolist() == [WATERMARK_S]
    assert done.condemned == []
    assert not len(plan([shard(1)], pinned=[1]).adopt)
    assert not len(plan([shard(1, 0), shard(1, 1, 10.0)], pinned=[1]).adopt)


def test_objects_that_were_used_since_their_upload_are_renewed_in_time() -> None:
    rules = SweepRules(renew_after_s=10 * HOUR_S)
    mixed = [shard(1, 0), shard(1, 1, 10 * HOUR_S - 1)]
    assert plan(mixed, used(1, NOW_S - 8 * HOUR_S), rules=rules).renew == mixed[:1]
    assert plan(mixed, used(1, NOW_S), rules=rules).renew == mixed[:1]
    assert plan(shards(1), used(1, 1), rules=rules).renew == []
    # Announced within half an hour of the upload: that is no use.
    assert plan(mixed, used(1, NOW_S - 9.5 * HOUR_S), rules=rules).renew == []
    assert plan(mixed, used(1, 1), pinned=[1], rules=rules).renew == mixed[:1]


def test_foreign_names_are_counted_and_left_alone() -> None:
    names = [name_of(1).upper(), name_of(1) + ".tmp", f"{NS}/data/00/x", "elsewhere"]
    foreign = [Listed(name, SIZE, 0.0, NOW_S, "x") for name in names]
    done = plan(foreign, held_s=WATERMARK_S)
    assert done.condemned == []
    assert done.foreign_count == len(foreign)


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([1, HELD_S - 1, HELD_S, WATERMARK_S - 1, WATERMARK_S, int(NOW_S)]),
        st.booleans(),
    ),
    max_size=8,
)
LISTINGS = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, WRITERS - 1)),
    st.sampled_from([0.0, HOUR_S - 1, HOUR_S, age_of(WATERMARK_S), age_of(HELD_S), OLD_S]),
)


@given(RECORDS, LISTINGS, st.sets(st.integers(0, 5)))
def test_every_shard_is_kept_condemned_or_waiting_and_nothing_live_goes(
    rows: list[tuple[int, int, bool]], ages: dict[tuple[int, int], float], pinned: set[int]
) -> None:
    records = [lost(fp, at) if dead else used(fp, at) for fp, at, dead in rows]
    listing = [shard(fp, writer, age_s) for (fp, writer), age_s in ages.items()]
    known = merge(records)
    done = plan(listing, known, pinned=sorted(pinned))

    assert len(done.condemned) + done.kept_count + done.waiting_count == len(listing)
    live = set(known.take(known.live(WATERMARK_S)).fps.tolist())
    for found in done.condemned:
        name = keys.parse_shard_key(found.key)
        assert name is not None
        fp = int.from_bytes(name.chunk_hash[:8], "big")
        assert fp not in live | pinned
        assert found.age_s >= HOUR_S
    whole = {fp for fp, _ in ages if all((fp, writer) in ages for writer in range(WRITERS))}
    assert set(done.lost.fps.tolist()) == live - whole
    assert set(done.adopt.fps.tolist()) <= whole - set(known.fps.tolist())
