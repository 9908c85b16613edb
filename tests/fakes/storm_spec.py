"""What all processes of a storm share: the archive's shape, its chunks, and the words they report.

A chunk has two shards, so that a process can die between them; its bytes follow from its number.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import asdict, dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from s3kv.bucket.connect import BucketSettings, parse_uri
from s3kv.core.compactor import CompactorSettings
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, fingerprint
from s3kv.core.keys import shard_key
from s3kv.core.shard import NONCE_BYTES, ShardIdentity, seal
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.namespaces import make_namespace

NAMESPACE = make_namespace(label="storm")
CHUNK_BLOCKS = 2
GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 64),), CHUNK_BLOCKS)
SHARD_BYTES = GEOMETRY.shard_bytes(CHUNK_BLOCKS)
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShortSettings(IndexSettings):
    """Times may be shorter than any production could bear."""

    def __post_init__(self) -> None:
        """`Times` checks what matters here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The protocol's times of one storm: an hour of each, or all shortened together.

    Whatever they are, R7 holds for requests as they are here: none lives longer than request_s.
    ticks_min: so many ticks make a run.
    """

    poll_s: float = 1.0
    head_ttl_s: float = 60.0
    request_s: float = 10.0
    min_age_s: float = 3_600.0
    grace_s: float = 3_600.0
    margin_s: float = 3_600.0
    ticks_min: int = 600

    def __post_init__(self) -> None:
        """Check R7, with the longest life of a request in this storm for that of its signature."""
        assert min(self.min_age_s, self.grace_s, self.margin_s) > self.head_ttl_s + self.request_s

    @property
    def settings(self) -> IndexSettings:
        """Of every client."""
        return _ShortSettings(
            poll_interval_s=self.poll_s,
            head_ttl_s=self.head_ttl_s,
            request_timeout_s=self.request_s,
            compactor=self.compactor,
        )

    @property
    def compactor(self) -> CompactorSettings:
        """Of whoever leads."""
        check_s = self.margin_s / 4
        return CompactorSettings(ticks_min=self.ticks_min, check_s=check_s, margin_s=self.margin_s)


SHORT_TIMES = Times(
    poll_s=0.5,
    head_ttl_s=3.0,
    request_s=4.0,
    min_age_s=8.0,
    grace_s=8.0,
    margin_s=8.0,
    ticks_min=2,
)
"""For sweeps and compaction while the storm blows. No process is stopped, only killed, so that a
request lives milliseconds where production allows it a quarter of an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormSpec:
    """Where the storm is, and how fast.

    The chunks below fragile_count are those that most harm is done to, and once reported lost they
    are not stored again; save_pause_s, load_pause_s: average, of each writer's loops, of a reader;
    harm_pause_s: likewise; data_death, segment_death, fold_death: how probably a process ends at
    one request that writes a shard, a segment, or the rest of the index.
    """

    endpoint_url: str
    uri: str
    chunk_count: int = 1_000
    fragile_count: int = 40
    save_pause_s: float = 0.5
    load_pause_s: float = 0.25
    harm_pause_s: float = 1.0
    data_death: float = 0.01
    segment_death: float = 0.02
    fold_death: float = 0.08
    times: Times = field(default_factory=Times)

    @property
    def bucket_settings(self) -> BucketSettings:
        """Of one small process."""
        address = parse_uri(self.uri)
        return BucketSettings(address=address, endpoint_url=self.endpoint_url, body_threads=1)

    @property
    def text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> StormSpec:
        """The inverse of `text`."""
        fields = json.loads(text)
        return StormSpec(**{**fields, "times": Times(**fields["times"])})


def identity_of(index: int, rank: int) -> ShardIdentity:
    """The shard of a chunk that one rank has."""
    names = tuple(
        BlockHash(hashlib.sha256(b"storm %d.%d" % (index, block)).digest())
        for block in range(CHUNK_BLOCKS)
    )
    return ShardIdentity(NAMESPACE.id, names[-1], ZERO_HASH, names, rank, RANKS)


def key_of(index: int, rank: int) -> str:
    """Its name."""
    return shard_key(NAMESPACE.id, identity_of(index, rank).chunk_hash, rank, RANKS)


@cache
def fps_of(chunk_count: int) -> NDArray[np.uint64]:
    """uint64[chunk_count]: the names of the first chunks in the index."""
    hashes = (identity_of(index, 0).chunk_hash for index in range(chunk_count))
    return np.array([fingerprint(each) for each in hashes], np.uint64)


def bits_of(chunks: NDArray[np.bool_]) -> str:
    """bool[n] as text: what a process knows of each chunk, in one line."""
    return np.packbits(chunks).tobytes().hex()


def chunks_in(bits: str) -> set[int]:
    """The numbers of the chunks that are set: the inverse of `bits_of`."""
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))).tolist())


def body_of(index: int, rank: int) -> bytes:
    """The shard as an engine would upload it; another ETag each time."""
    slot = memoryview(bytearray(GEOMETRY.slot_bytes))
    data = random.Random(f"{index}.{rank}").randbytes(CHUNK_BLOCKS * GEOMETRY.block_bytes)
    slot[GEOMETRY.header_bytes : GEOMETRY.header_bytes + len(data)] = data
    return bytes(seal(slot, GEOMETRY, identity_of(index, rank), os.urandom(NONCE_BYTES)))


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a process.

    who: the process; what: see `storm_roles`, `storm_store` and `storm_nursery`; at_s: monotonic,
    the same clock for all processes of a machine; chunk: its number, -1 where none is meant.
    """

    who: str
    what: str
    at_s: float
    chunk: int = -1
    count: int = 0
    text: str = ""


def tell(event: Event) -> None:
    """Write one line. Whole or not at all, whoever is killed: shorter than PIPE_BUF."""
    fields = [event.who, event.what, event.at_s, event.chunk, event.count, event.text[:2_000]]
    line = json.dumps(fields).encode() + b"\n"
    assert os.write(1, line) == len(line)


def heard(line: bytes) -> Event:
    """The inverse of `tell`."""
    return Event(*json.loads(line))
