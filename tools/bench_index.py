"""Benchmark of the index: `python -m tools.bench_index [--quick]`; JSON on stdout, progress beside.

In one run, side by side: look-ups, memory, merging, opening from a SeaweedFS on this machine, and
the requests of fleets, counted on simulated time. Every goal is compared with what was measured;
the exit status says nothing about goals, since machines differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.connect import BucketAddress, BucketSettings, connect
from s3kv.cli.local_store import create_bucket, local_store
from s3kv.core.bounds import MONTH_S
from tests.simulation.fleet import HOUR_S, Bill, busy_bill, idle_bill
from tools import index_figures as figures
from tools.index_figures import Figures

Document = dict[str, object]

BUCKET: Final = "s3kv-bench"
PROMPT_CHUNKS: Final = (32, 512)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """dedicated: with `s3kv sequencer`; idle_s, busy_s: simulated seconds that are counted; design:
    dollars a month idle and busy by the table that the index was designed with."""

    engines: int
    dedicated: bool
    idle_s: float
    busy_s: float
    design_usd_per_month: tuple[float, float]


FLEETS: Final = (
    FleetSize(1, False, 600.0, 1_300.0, (4, 27)),
    FleetSize(10, False, 600.0, 700.0, (13, 165)),
    FleetSize(100, True, 120.0, 60.0, (108, 1_536)),
    FleetSize(1_000, True, 60.0, 10.0, (1_054, 4_622)),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of the largest archive that should stay below a limit."""

    name: str
    path: tuple[str, ...]
    limit: float
    unit: str


GOALS: Final = (
    Goal("look-up of 512 chunks, p99", ("lookup", "512", "full_memtable", "p99_us"), 1_500, "us"),
    Goal("look-up of 32 chunks, p99", ("lookup", "32", "full_memtable", "p99_us"), 200, "us"),
    Goal("memory", ("memory", "bytes_per_chunk"), 12.5, "bytes per chunk"),
    Goal("open from a local store", ("open", "open_s"), 5, "s"),
    Goal("stall of another thread beside a merge", ("merge", "longest_stall_ms"), 20, "ms"),
)


def in_memory(block_count: int, repeats: int) -> Document:
    """Everything that needs no store, for an archive of so many blocks."""
    rng = np.random.default_rng(1)
    archive = figures.make_archive(block_count // figures.CHUNK_BLOCKS, rng)
    snapshot, taken = figures.memory(archive)
    full = figures.with_full_memtable(snapshot, archive, rng)
    lookups = {
        str(count): {
            "empty_memtable": figures.lookup(snapshot, count, rng, repeats),
            "full_memtable": figures.lookup(full, count, rng, repeats),
        }
        for count in PROMPT_CHUNKS
    }
    merge = figures.merging(snapshot, archive, rng)
    return {"memory": taken, "lookup": lookups, "merge": merge}


async def opened(store: ObjectStore, block_count: int) -> Figures:
    """Write an archive of so many blocks to the store, and open it."""
    rng = np.random.default_rng(2)
    archive = figures.make_archive(block_count // figures.CHUNK_BLOCKS, rng)
    file_bytes = await figures.write_runs(store, archive, rng)
    del archive
    return await figures.opening(store, file_bytes)


def fleet(size: FleetSize) -> Document:
    """Requests and dollars an hour of one fleet, idle and busy, beside what was designed."""
    idle = idle_bill(size.engines, size.idle_s, dedicated=size.dedicated)
    busy = busy_bill(size.engines, size.busy_s, dedicated=size.dedicated)
    return {
        "engines": size.engines,
        "dedicated_sequencer": size.dedicated,
        "idle": _bill_document(idle, size.design_usd_per_month[0]),
        "busy": _bill_document(busy, size.design_usd_per_month[1]),
    }


def _bill_document(bill: Bill, design_usd_per_month: float) -> Document:
    hours = MONTH_S / HOUR_S
    return {
        "counted_s": bill.seconds,
        "requests_per_hour": {kind: round(bill.per_hour(kind)) for kind in sorted(bill.counts)},
        "usd_per_hour": round(bill.usd_per_hour, 6),
        "usd_per_month": round(bill.usd_per_hour * hours, 2),
        "design_usd_per_hour": round(design_usd_per_month / hours, 6),
        "times_design": round(bill.usd_per_hour * hours / design_usd_per_month, 2),
    }


def verdicts(archive: Document) -> list[Document]:
    """Each goal beside what was measured; a figure that was not measured has no verdict."""
    found: list[Document] = []
    for goal in GOALS:
        value = _figure(archive, goal.path)
        if value is None:
            continue
        # On a machine that does other things too, the time that was ours says more.
        in_cpu = _figure(archive, (*goal.path[:-1], f"cpu_{goal.path[-1]}"))
        beside = {} if in_cpu is None else {"measured_in_processor_time": round(in_cpu, 3)}
        is_reached = value <= goal.limit
        percent = round(abs(value / goal.limit - 1) * 100)
        found.append(
            {
                "goal": f"{goal.name}: at most {goal.limit:g} {goal.unit}",
                "measured": round(value, 3),
                **beside,
                "verdict": f"reached, {percent}% below" if is_reached else f"missed by {percent}%",
            }
        )
    return found


def _figure(archive: Document, path: Sequence[str]) -> float | None:
    value: object = archive
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, float | int) else None


def run(block_counts: Sequence[int], sizes: Sequence[FleetSize], repeats: int) -> Document:
    """The whole benchmark. Starts and stops a store of its own."""
    load = os.getloadavg()[0]
    archives: dict[str, Document] = {}
    for count in block_counts:
        _tell(f"look-ups and merges at {count:,} blocks")
        archives[f"{count}"] = in_memory(count, repeats)
    with tempfile.TemporaryDirectory(prefix="s3kv-bench-") as folder:
        for count in block_counts:
            _tell(f"opening {count:,} blocks from a local store")
            archives[f"{count}"]["open"] = _open_from_seaweed(Path(folder) / str(count), count)
    fleets = []
    for size in sizes:
        _tell(f"counting the requests of {size.engines:,} engines")
        fleets.append(fleet(size))
    return {
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_at_begin": load,
            "load_at_end": os.getloadavg()[0],
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "archives_by_blocks": archives,
        "fleets": fleets,
        "goals": {"at_blocks": max(block_counts), "of": verdicts(archives[f"{max(block_counts)}"])},
    }


def _open_from_seaweed(folder: Path, block_count: int) -> Figures:
    with local_store(folder) as seaweed:
        os.environ.update(seaweed.environment())
        create_bucket(seaweed.endpoint_url, BUCKET)
        settings = BucketSettings(
            address=BucketAddress(BUCKET, ""), endpoint_url=seaweed.endpoint_url
        )
        return asyncio.run(_opened_and_closed(settings, block_count))


async def _opened_and_closed(settings: BucketSettings, block_count: int) -> Figures:
    store = connect(settings)
    try:
        return await opened(store, block_count)
    finally:
        await store.close()


def _tell(line: str) -> None:
    print(f"... {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: is everything in order?")
    quick = parser.parse_args().quick
    block_counts = (1_000_000,) if quick else (1_000_000, 100_000_000)
    document = run(block_counts, FLEETS[:2] if quick else FLEETS, 50 if quick else 500)
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
