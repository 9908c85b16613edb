"""Sequencers of several engines over one index."""

from __future__ import annotations

import random

from s3kv.core import keys
from s3kv.core.follower import Follower
from s3kv.core.indexfile import Header, Kind, decode
from s3kv.core.records import RecordSet, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from tests.fakes.index_store import NS, IndexStore

TTL_S = 60.0


def new_engine(
    store: IndexStore, name: str = "a", settings: SequencerSettings | None = None
) -> Sequencer:
    follower = Follower(NS, TTL_S)
    store.run(follower.open())
    writer = name.encode() * 16
    return Sequencer(follower, writer, settings or SequencerSettings(), random.Random(1))


def chunk(*fps: int, seen_s: int = 1_001_000) -> RecordSet:
    return make_records(fps, seen_s, 16)


def read_tick(store: IndexStore, number: int) -> tuple[Header, list[int]]:
    header, records = decode(
        store.objects[keys.tick_key(NS, number)][0], NS, Kind.TICK, number, number
    )
    return header, records.fps.tolist()


def leading_engine(
    store: IndexStore, name: str = "a", settings: SequencerSettings | None = None
) -> Sequencer:
    engine = new_engine(store, name, settings)
    store.run(engine.sequence(store.now(), chunk(0xFFFF)))
    assert engine.leads
    return engine


def live(engine: Sequencer) -> list[int]:
    return [int(fp) for fp in engine.follower.snapshot.live().fps]
