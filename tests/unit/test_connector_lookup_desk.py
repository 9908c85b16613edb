"""Lookups from memory: fresh answers at once, probes bounded, bad chunks avoided for a while."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.lookup import Match, Miss, Unknown
from s3kv.core.packed import pack
from s3kv.core.reasons import MissReason
from s3kv.core.records import make_records
from s3kv.core.snapshot import Pause, Snapshot
from s3kv.errors import Denied, Transient
from tests.unit.connector_values import (
    AVOID_LOST_S,
    AVOID_S,
    BLOCK,
    GEOMETRY,
    LOST_MAX,
    FakeRequest,
    LookupDesk,
    Tracked,
    chain_of,
    track,
)

NOW = 1_000.0
DEADLINE_S = 0.1
CHAIN = chain_of(14)


def snapshot(*present: BlockHash, **changes: Any) -> Snapshot:
    fps = np.sort(fingerprints(list(present)))
    blocks = np.full(len(fps), 4, np.uint16)
    records = make_records(fps, np.full(len(fps), 5_000, np.uint32), blocks)
    return Snapshot(base=pack(records), opened=True, head_seen_s=NOW, **changes)


class View:
    """An opened archive whose probes the test answers."""

    def __init__(self, known: Snapshot) -> None:
        self.snapshot = known
        self.probes: list[tuple[tuple[Chunk, ...], Chunk | None, float]] = []
        self.answer: Future[tuple[Chunk, ...]] = Future()

    def probe(
        self, full: Sequence[Chunk], tail: Chunk | None, timeout_s: float
    ) -> Future[tuple[Chunk, ...]]:
        self.probes.append((tuple(full), tail, timeout_s))
        return self.answer


def request(token_count: int = 14 * BLOCK + 3) -> Tracked:
    one: Any = FakeRequest.of(token_count)
    return track(one, GEOMETRY, NOW)


def desk_on(view: View, mode: str = "auto") -> LookupDesk:
    return LookupDesk(view, mode, DEADLINE_S)


def blocks_of(found: object) -> int:
    assert isinstance(found, Match), found
    return found.blocks


# ------------------------------------------------------------------------ in memory
def test_a_fresh_index_answers_at_once_and_asks_nobody() -> None:
    view = View(snapshot(CHAIN[3], CHAIN[7]))
    assert blocks_of(desk_on(view).look_up(request(), 0, NOW)) == 8
    assert desk_on(View(snapshot())).look_up(request(), 0, NOW) == Miss(MissReason.ABSENT)
    assert view.probes == []


def test_a_tail_of_an_earlier_prompt_is_found() -> None:
    view = View(snapshot(CHAIN[3], CHAIN[6]))
    assert blocks_of(desk_on(view).look_up(request(), 0, NOW)) == 7


def test_what_the_engine_holds_itself_bridges_a_hole() -> None:
    view = View(snapshot(CHAIN[7], CHAIN[11]))
    assert desk_on(view).look_up(request(), 0, NOW) == Miss(MissReason.ABSENT)
    assert blocks_of(desk_on(view).look_up(request(), 4, NOW)) == 12


def test_a_fleet_that_is_paused_loads_nothing() -> None:
    view = View(snapshot(CHAIN[3], pause=Pause(loads=True)))
    assert desk_on(view).look_up(request(), 0, NOW) == Miss(MissReason.PAUSED)


def test_a_miss_says_whether_the_first_chunk_was_ever_there() -> None:
    def reason(known: Snapshot) -> object:
        return desk_on(View(known)).look_up(request(), 0, NOW)

    lost = Snapshot().dead_records(fingerprints([CHAIN[3]]), 5_000.0)
    assert reason(snapshot(CHAIN[7])) == Miss(MissReason.ABSENT)
    assert reason(snapshot(CHAIN[3], watermark_s=5_001)) == Miss(MissReason.EXPIRED)
    assert reason(snapshot(CHAIN[2], watermark_s=5_001)) == Miss(MissReason.EXPIRED)
    assert reason(snapshot().absorb(lost)) == Miss(MissReason.LOST)
    short = desk_on(View(snapshot(watermark_s=5_001))).look_up(request(BLOCK), 0, NOW)
    assert short == Miss(MissReason.SHORT)


# ------------------------------------------------------------------------- avoiding
@pytest.mark.parametrize(("lost", "for_s"), [(True, AVOID_LOST_S), (False, AVOID_S)])
def test_a_chunk_whose_load_failed_is_left_out_for_a_while(lost: bool, for_s: float) -> None:
    desk = desk_on(View(snapshot(CHAIN[3], CHAIN[7], CHAIN[11], head_ttl_s=3_600.0)))
    desk.avoid(CHAIN[7], NOW, lost=lost)
    assert blocks_of(desk.look_up(request(), 0, NOW + for_s - 0.1)) == 4
    assert blocks_of(desk.look_up(request(), 0, NOW + for_s)) == 12


def test_a_chunk_archived_anew_is_offered_again_at_once() -> None:
    desk = desk_on(View(snapshot(CHAIN[3])))
    desk.avoid(CHAIN[3], NOW, lost=True)
    assert desk.is_lost(CHAIN[3])
    assert desk.look_up(request(), 0, NOW) == Miss(MissReason.ABSENT)
    desk.welcome(CHAIN[3])
    assert not desk.is_lost(CHAIN[3])
    assert blocks_of(desk.look_up(request(), 0, NOW)) == 4


def test_only_chunks_that_are_gone_or_wrong_must_be_saved_again() -> None:
    desk = desk_on(View(snapshot(*CHAIN)))
    desk.avoid(CHAIN[3], NOW, lost=True)
    desk.avoid(CHAIN[7], NOW, lost=False)
    listed = desk.listed(NOW)
    assert listed(fingerprints([CHAIN[3], CHAIN[7], CHAIN[11]])).tolist() == [False, True, True]


def test_a_stale_index_talks_nobody_out_of_a_save() -> None:
    desk = desk_on(View(snapshot(*CHAIN)))
    names = fingerprints([CHAIN[3], CHAIN[7]])
    assert desk.listed(NOW)(names).all()
    assert not desk.listed(NOW + 3600)(names).any()


def test_the_memory_of_lost_chunks_is_bounded() -> None:
    desk = desk_on(View(snapshot()))
    for index in range(LOST_MAX + 1):
        desk.avoid(BlockHash(index.to_bytes(32, "big")), NOW, lost=True)
    assert len(desk._lost) <= LOST_MAX


# -------------------------------------------------------------------------- probing
STALE = replace(snapshot(CHAIN[3]), head_seen_s=NOW - 3_600)
CLOSED = Snapshot()


@pytest.mark.parametrize("known", [STALE, CLOSED], ids=["stale", "not open"])
def test_without_a_fresh_index_the_bucket_is_asked_once_and_until_then_nothing_is_known(
    known: Snapshot,
) -> None:
    view = View(known)
    desk, one = desk_on(view), request()
    assert desk.look_up(one, 0, NOW) == Unknown()
    assert desk.look_up(one, 0, NOW + 0.05) == Unknown()
    ((full, tail, timeout_s),) = view.probes
    assert [c.chunk_hash for c in full] == [CHAIN[3], CHAIN[7], CHAIN[11]]
    assert tail is not None
    assert tail.chunk_hash == CHAIN[13]
    assert timeout_s == pytest.approx(DEADLINE_S)
    view.answer.set_result(full[:2])
    assert blocks_of(desk.look_up(one, 0, NOW + 0.06)) == 8


def test_a_probe_that_found_nothing_is_a_miss() -> None:
    view = View(CLOSED)
    desk, one = desk_on(view), request()
    desk.look_up(one, 0, NOW)
    view.answer.set_result(())
    assert desk.look_up(one, 0, NOW) == Miss(MissReason.ABSENT)


def test_a_lookup_never_waits_longer_than_its_deadline() -> None:
    view = View(CLOSED)
    desk, one = desk_on(view), request()
    assert desk.look_up(one, 0, NOW + DEADLINE_S * 0.9) == Unknown()
    assert desk.look_up(one, 0, NOW + DEADLINE_S + 0.01) == Miss(MissReason.LOOKUP_DEADLINE)
    late = request()
    assert desk.look_up(late, 0, NOW + 9.0) == Miss(MissReason.LOOKUP_DEADLINE)
    assert len(view.probes) == 1, "nothing is asked that cannot be answered in time"


@pytest.mark.parametrize("error", [Transient("down"), Denied("no"), TimeoutError()])
def test_a_failed_probe_is_a_miss(error: Exception) -> None:
    view = View(CLOSED)
    desk, one = desk_on(view), request()
    desk.look_up(one, 0, NOW)
    view.answer.set_exception(error)
    assert desk.look_up(one, 0, NOW) == Miss(MissReason.PROBE_FAILED)


def test_a_probe_does_not_bring_back_what_is_avoided_or_lost() -> None:
    view = View(CLOSED)
    desk, one = desk_on(view), request()
    desk.avoid(CHAIN[7], NOW - AVOID_S, lost=True)
    desk.look_up(one, 0, NOW)
    view.answer.set_result(view.probes[0][0])
    assert blocks_of(desk.look_up(one, 0, NOW)) == 4


@pytest.mark.parametrize(
    ("known", "reason"), [(STALE, MissReason.STALE), (CLOSED, MissReason.INDEX_NOT_OPEN)]
)
def test_with_probes_off_the_index_has_until_the_deadline(
    known: Snapshot, reason: MissReason
) -> None:
    view = View(known)
    desk, one = desk_on(view, "off"), request()
    assert desk.look_up(one, 0, NOW) == Unknown()
    assert desk.look_up(one, 0, NOW + DEADLINE_S + 0.01) == Miss(reason)
    assert view.probes == []


# -------------------------------------------------------------------- probe mode fresh
def test_fresh_mode_asks_for_the_one_chunk_after_the_index_s_end() -> None:
    view = View(snapshot(CHAIN[3]))
    desk, one = desk_on(view, "fresh"), request()
    assert desk.look_up(one, 0, NOW) == Unknown()
    ((full, tail, _),) = view.probes
    assert [c.chunk_hash for c in full] == [CHAIN[7]]
    assert tail is None
    view.answer.set_result(full)
    assert blocks_of(desk.look_up(one, 0, NOW)) == 8
    assert len(view.probes) == 1


def test_fresh_mode_falls_back_to_the_index() -> None:
    for end in ("nothing", "error", "late"):
        view = View(snapshot(CHAIN[3]))
        desk, one = desk_on(view, "fresh"), request()
        desk.look_up(one, 0, NOW)
        if end == "nothing":
            view.answer.set_result(())
        elif end == "error":
            view.answer.set_exception(Transient("down"))
        late_s = DEADLINE_S + 0.01 if end == "late" else 0.0
        assert blocks_of(desk.look_up(one, 0, NOW + late_s)) == 4


def test_fresh_mode_asks_nothing_beyond_a_whole_hit() -> None:
    view = View(snapshot(CHAIN[3], CHAIN[7], CHAIN[11]))
    assert blocks_of(desk_on(view, "fresh").look_up(request(12 * BLOCK), 0, NOW)) == 12
    assert view.probes == []
