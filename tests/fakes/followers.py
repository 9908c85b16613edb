"""A follower, and the objects that it reads."""

from __future__ import annotations

from s3kv.core import keys
from s3kv.core.follower import Follower
from s3kv.core.indexfile import Kind, encode
from s3kv.core.records import RecordSet, make_records
from tests.fakes.index_store import NS, IndexStore, make_header

TTL_S = 60.0
WRITER = b"w" * 16


def new_follower() -> Follower:
    return Follower(NS, TTL_S)


def put_tick(
    store: IndexStore,
    number: int,
    records: RecordSet,
    watermark_s: int = 0,
    interval_ms: int = 1_000,
    pause_bits: int = 0,
) -> None:
    header = make_header(
        Kind.TICK, number, watermark_s=watermark_s, interval_ms=interval_ms, pause_bits=pause_bits
    )
    store.objects[keys.tick_key(NS, number)] = (encode(header, records), store.now_s)


def put_segment(store: IndexStore, seq: int, records: RecordSet) -> None:
    header = make_header(Kind.SEGMENT, seq)
    store.objects[keys.segment_key(NS, WRITER, seq)] = (encode(header, records), store.now_s)


def put_run(store: IndexStore, lo: int, hi: int, records: RecordSet, pause_bits: int = 0) -> None:
    header = make_header(Kind.RUN, lo, hi, pause_bits=pause_bits)
    store.objects[keys.run_key(NS, lo, hi)] = (encode(header, records), store.now_s)


def chunk(fp: int, seen_s: int = 100) -> RecordSet:
    return make_records([fp], seen_s, 16)


def live(follower: Follower) -> list[int]:
    return [int(fp) for fp in follower.snapshot.live().fps]
