"""A change of the pause touches its own bits, whoever changes what at the same moment."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from s3kv.core import requests as core
from s3kv.core.follower import LOADS_BIT, SAVES_BIT, Follower
from s3kv.core.indexfile import Kind, encode
from s3kv.core.keys import tick_key
from s3kv.core.pausing import CHANGES_MAX, Changed, PauseChange, change_pause
from s3kv.core.records import EMPTY, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.snapshot import Pause
from s3kv.errors import Denied, Transient
from tests.fakes.index_store import NS, Fault, IndexStore, make_header

NEWER_BIT = 1 << 20
PAUSE_LOADS = PauseChange(set_bits=LOADS_BIT)
PAUSE_SAVES = PauseChange(set_bits=SAVES_BIT)
RESUME_LOADS = PauseChange(clear_bits=LOADS_BIT)
RESUME_BOTH = PauseChange(clear_bits=LOADS_BIT | SAVES_BIT)


def opened(store: IndexStore, name: bytes = b"c" * 16) -> Sequencer:
    sequencer = Sequencer(Follower(NS, 60.0), name, SequencerSettings(), random.Random(1))
    store.run(sequencer.follower.open())
    return sequencer


def change(store: IndexStore, wanted: PauseChange, fault: Fault | None = None) -> Changed:
    return store.run(change_pause(opened(store), store.now(), wanted), fault)


def seen(store: IndexStore) -> int:
    return opened(store).follower.pause_bits


def before_each_create(act: Callable[[], object], times: int = 1) -> Fault:
    """Does something just before a tick is sent."""
    left = times

    def fault(request: core.Single) -> None:
        nonlocal left
        if isinstance(request, core.Create) and left:
            left -= 1
            act()

    return fault


def test_pauses_add_up_and_are_taken_back_one_by_one() -> None:
    store = IndexStore()

    assert change(store, PAUSE_LOADS) == Changed(0, LOADS_BIT)
    assert change(store, PAUSE_SAVES) == Changed(LOADS_BIT, LOADS_BIT | SAVES_BIT)
    assert opened(store).follower.snapshot.pause == Pause(loads=True, saves=True)
    assert change(store, RESUME_LOADS) == Changed(LOADS_BIT | SAVES_BIT, SAVES_BIT)
    assert opened(store).follower.snapshot.pause == Pause(loads=False, saves=True)


@pytest.mark.parametrize("wanted", [PAUSE_LOADS, RESUME_BOTH])
def test_what_is_in_force_already_writes_nothing(wanted: PauseChange) -> None:
    store = IndexStore()
    store.run(opened(store).write_segment(make_records([7], 5, 1), store.now()))
    if wanted.set_bits:
        change(store, wanted)
        store.run(opened(store).write_segment(make_records([8], 5, 1), store.now()))
    before = dict(store.objects)

    assert change(store, wanted) == Changed(wanted.set_bits, wanted.set_bits)

    assert store.objects == before


def test_bits_that_a_newer_version_defined_are_passed_on() -> None:
    store = IndexStore()
    header = make_header(Kind.TICK, 1, pause_bits=NEWER_BIT | LOADS_BIT)
    store.objects[tick_key(NS, 1)] = (encode(header, EMPTY), store.now_s)

    assert change(store, PAUSE_SAVES).now == NEWER_BIT | LOADS_BIT | SAVES_BIT
    assert change(store, RESUME_BOTH).now == NEWER_BIT
    assert seen(store) == NEWER_BIT


def test_two_who_change_different_bits_at_once_both_get_what_they_asked_for() -> None:
    store = IndexStore()

    changed = change(store, PAUSE_LOADS, before_each_create(lambda: change(store, PAUSE_SAVES)))

    assert changed == Changed(SAVES_BIT, SAVES_BIT | LOADS_BIT)
    assert seen(store) == LOADS_BIT | SAVES_BIT
    assert len(store.keys("/tick/")) == 2


def test_a_tick_without_a_pause_in_the_slot_only_costs_another_try() -> None:
    store = IndexStore()

    def fold() -> None:
        other = opened(store, b"o" * 16)
        store.run(other.sequence(store.now(), make_records([3], 5, 1)))

    assert change(store, PAUSE_LOADS, before_each_create(fold, times=3)).now == LOADS_BIT
    assert seen(store) == LOADS_BIT
    assert len(store.keys("/tick/")) == 4


def test_who_did_the_same_meanwhile_saves_us_the_tick() -> None:
    store = IndexStore()

    change(store, PAUSE_LOADS, before_each_create(lambda: change(store, PAUSE_LOADS)))

    assert len(store.keys("/tick/")) == 1


def test_a_lost_reply_is_no_second_change() -> None:
    store = IndexStore()
    lost = iter([True])

    def lose(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create) and next(lost, False):
            store.carry_out(request)
            return core.Lost("no reply")
        return None

    assert change(store, PAUSE_LOADS, lose) == Changed(0, LOADS_BIT)
    assert len(store.keys("/tick/")) == 1


def test_it_gives_up_when_others_never_stop_and_when_it_is_refused() -> None:
    store = IndexStore()

    def flip() -> None:
        has_saves = bool(seen(store) & SAVES_BIT)
        change(store, PauseChange(clear_bits=SAVES_BIT) if has_saves else PAUSE_SAVES)

    with pytest.raises(Transient, match=f"{CHANGES_MAX} times"):
        change(store, PAUSE_LOADS, before_each_create(flip, times=100))
    with pytest.raises(Denied):
        change(
            store,
            PAUSE_LOADS,
            lambda request: core.Refused("403") if isinstance(request, core.Create) else None,
        )
    assert not seen(store) & LOADS_BIT
