"""Measures the index in memory and its opening from a store; `bench_index.py` puts it together.

Every function takes its size and returns plain numbers with their units in their names, so that a
test can run them small. What else runs on the machine only ever adds: so what is repeated is given
by its best round, and for look-ups in processor time as well. Chunks are as in an archive: random
fingerprints, a few tails of prompts, a few reports of lost shards.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.bucket.base import ObjectStore
from s3kv.core import keys
from s3kv.core.follower import Follower
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.indexfile import Header, Kind, encode
from s3kv.core.lookup import Match, match
from s3kv.core.packed import pack
from s3kv.core.records import DEAD, RECORDS_MAX, RecordSet, make_records
from s3kv.core.snapshot import RECENT_MAX, Snapshot
from s3kv.runtime.clock import Clock
from s3kv.runtime.perform import perform

Figures = dict[str, float]

CHUNK_BLOCKS: Final = 16
TAIL_SHARE, LOST_SHARE = 0.03, 0.001
MIN_TAIL_BLOCKS: Final = 1
NOW_S: Final = 1_800_000_000
RUN_SHARES: Final = (0.80, 0.16, 0.04)
"""Sizes of runs as tiered merging leaves them."""
TIMEOUT_S: Final = 20.0
ROUNDS: Final = 5
NS: Final = NamespaceId("be7c4" + "0" * 27)

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def make_archive(chunk_count: int, rng: np.random.Generator) -> RecordSet:
    """So many records in order, last used within a week."""
    fps = np.sort(rng.integers(0, 2**64 - 1, chunk_count, dtype=np.uint64))
    if (fps[1:] == fps[:-1]).any():
        fps = np.unique(fps)
    blocks = np.full(len(fps), CHUNK_BLOCKS, np.uint16)
    tails = rng.random(len(fps), np.float32) < TAIL_SHARE
    blocks[tails] = rng.integers(1, CHUNK_BLOCKS, int(tails.sum()))
    flags = (rng.random(len(fps), np.float32) < LOST_SHARE) * DEAD
    seen_s = rng.integers(NOW_S - 7 * 86_400, NOW_S, len(fps), dtype=np.uint32)
    return RecordSet(fps, seen_s, blocks, flags.astype(np.uint16))


def make_news(archive: RecordSet, count: int, rng: np.random.Generator) -> RecordSet:
    """New chunks and new uses of known ones, half and half."""
    old = rng.choice(archive.fps, min(count // 2, len(archive)), replace=False)
    new = rng.integers(0, 2**64 - 1, count - len(old), dtype=np.uint64)
    return make_records(np.concatenate((old, new)), NOW_S, CHUNK_BLOCKS)


def memory(archive: RecordSet) -> tuple[Snapshot, Figures]:
    """The archive as a snapshot's base, and what it takes."""
    gc.collect()
    before_bytes = resident_bytes()
    base = pack(archive)
    taken_bytes = resident_bytes() - before_bytes
    return Snapshot(base=base, opened=True), {
        "chunks": len(base),
        "bytes_per_chunk": base.nbytes / len(base),
        "bytes_per_chunk_without_tails": 12 + 8 / 64,
        "resident_bytes_per_chunk": taken_bytes / len(base),
    }


def lookup(snapshot: Snapshot, chunk_count: int, rng: np.random.Generator, repeats: int) -> Figures:
    """Longest prefix of prompts of so many chunks: hits of every length, and misses."""
    times_us = np.empty((ROUNDS, repeats, 2))
    hit_chunks = 0
    for measured in times_us.reshape(-1, 2):
        known = int(rng.integers(0, chunk_count + 1))
        hashes = _prompt(snapshot, known, chunk_count, rng)
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        found = match(snapshot.present, hashes, CHUNK_BLOCKS, MIN_TAIL_BLOCKS)
        cpu_ns, wall_ns = time.thread_time_ns() - began_cpu_ns, time.perf_counter_ns() - began_ns
        measured[:] = wall_ns / 1_000, cpu_ns / 1_000
        hit_chunks += len(found.chunks) if isinstance(found, Match) else 0
    p50_us, p99_us = np.percentile(times_us, (50, 99), axis=1).min(axis=1)
    return {
        "p50_us": float(p50_us[0]),
        "p99_us": float(p99_us[0]),
        "cpu_p50_us": float(p50_us[1]),
        "cpu_p99_us": float(p99_us[1]),
        "hit_share": hit_chunks / (times_us[..., 0].size * chunk_count),
    }


def with_full_memtable(
    snapshot: Snapshot, archive: RecordSet, rng: np.random.Generator
) -> Snapshot:
    """As many recent records as there may be before they are laid over the base."""
    news = make_news(archive, RECENT_MAX, rng)
    return snapshot.absorb(news, RECENT_MAX)


def merging(snapshot: Snapshot, archive: RecordSet, rng: np.random.Generator) -> Figures:
    """A tick's most records laid over the base, off the loop thread, and what is left for it."""
    news = make_news(archive, RECORDS_MAX, rng)
    few = make_news(archive, min(RECORDS_MAX, len(archive)) // 8, rng)
    full = with_full_memtable(snapshot, archive, rng)
    later = full.absorb(few, 2 * RECENT_MAX)
    merged = snapshot.settled_base(news, 0)
    return {
        "news": len(news),
        "merge_ms": best_ms(lambda: snapshot.settled_base(news, 0)),
        "longest_stall_ms": stall_ms(lambda: snapshot.settled_base(news, 0)),
        "longest_stall_without_merge_ms": stall_ms(lambda: time.sleep(0.1)),
        "absorb_8k_ms": best_ms(lambda: full.absorb(few, 2 * RECENT_MAX)),
        "rebase_with_8k_more_ms": best_ms(lambda: later.rebased(full, merged)),
        "peak_extra_bytes_per_chunk": _peak_bytes(lambda: snapshot.settled_base(news, 0))
        / len(snapshot.base),
    }


async def write_runs(store: ObjectStore, archive: RecordSet, rng: np.random.Generator) -> int:
    """The archive as a few runs, as compactors leave them. Returns the bytes of all."""
    which = rng.choice(len(RUN_SHARES), len(archive), p=RUN_SHARES)
    written, lo = 0, 1
    for index in range(len(RUN_SHARES)):
        part = archive.take(which == index)
        header = Header(
            kind=Kind.RUN,
            namespace=NS,
            lo=lo,
            hi=lo + 599,
            writer=bytes(16),
            watermark_s=0,
            interval_ms=1_000,
            created_s=NOW_S,
            pause_bits=0,
        )
        body = encode(header, part)
        await store.put(keys.run_key(NS, header.lo, header.hi), body, timeout_s=120.0)
        written += len(body)
        lo = header.hi + 1
    return written


async def opening(store: ObjectStore, file_bytes: int) -> Figures:
    """Open the index that `write_runs` left, as an engine does."""
    follower = Follower(NS, 60.0)
    gc.collect()
    _forget_peak()
    before_bytes = resident_bytes()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await perform(follower.open(), store, Clock(), TIMEOUT_S)
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return {
        "chunks": len(follower.snapshot.base) + len(follower.snapshot.recent),
        "open_s": seconds,
        "open_cpu_s": cpu_s,
        "file_bytes": file_bytes,
        "peak_resident_growth_bytes": resident_bytes(peak=True) - before_bytes,
    }


def stall_ms(work: Callable[[], object]) -> float:
    """The longest time for which a busy thread stood still while this thread did the work.

    Of the best round: whatever keeps the interpreter locked does so in every one.
    """
    longest_s = []
    for _ in range(ROUNDS):
        busy = _Busy()
        busy.start()
        work()
        busy.is_over = True
        busy.join()
        longest_s.append(busy.longest_s)
    return min(longest_s) * 1_000


def best_ms(work: Callable[[], object]) -> float:
    """How long the work takes."""
    times_s = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s) * 1_000


class _Busy(threading.Thread):
    """Looks at the clock again and again, as an engine's thread runs Python again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_over = False
        self.longest_s = 0.0

    def run(self) -> None:
        last_s = time.perf_counter()
        while not self.is_over:
            now_s = time.perf_counter()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s


def resident_bytes(*, peak: bool = False) -> int:
    """Memory of this process now, or the most it ever had."""
    if peak:
        status = Path("/proc/self/status").read_text("ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1_024
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES


def _forget_peak() -> None:
    """Linux counts the most resident memory anew from here."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def _prompt(
    snapshot: Snapshot, known: int, chunk_count: int, rng: np.random.Generator
) -> list[BlockHash]:
    """A chain whose first chunks are in the index, and the others are not."""
    fps = rng.integers(0, 2**64 - 1, chunk_count, dtype=np.uint64)
    fps[:known] = snapshot.base.fps[rng.integers(0, len(snapshot.base), known)]
    rest = rng.bytes(24)
    filler = [BlockHash(rng.bytes(32)) for _ in range(CHUNK_BLOCKS - 1)]
    hashes: list[BlockHash] = []
    for fp in _big_endian(fps):
        hashes += filler
        hashes.append(BlockHash(fp + rest))
    return hashes


def _big_endian(fps: NDArray[np.uint64]) -> list[bytes]:
    joined = fps.astype(">u8").tobytes()
    return [joined[at : at + 8] for at in range(0, len(joined), 8)]


def _peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that numpy had at once for the work, its result among it."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
