"""What is wrong with a shard, with a chunk, and with what the index says of a folder: decisions.

Rules upheld here: only what no reader would ever accept is called wrong. Bytes of a format that we
do not know are not wrong but unknown; a shard that lacks its companions may still be waiting for
them. Pure: fed with listings, headers and snapshots; fetching and acting is `runtime.verifying`'s.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappush, heappushpop

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import NamespaceId, fingerprint
from s3kv.core.keys import ShardName
from s3kv.core.records import DEAD, EMPTY, RecordSet, make_records, overlay
from s3kv.core.requests import Listed
from s3kv.core.shard import ShardHeader, header_length, read_header
from s3kv.core.snapshot import Snapshot
from s3kv.errors import Corrupt, Mismatch


class Wrong(enum.Enum):
    """In what way a shard is wrong."""

    NAME = "name"
    SIZE = "size"
    HEADER = "header"
    CHECKSUM = "checksum"
    NAMESPACE = "foreign namespace"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one shard; says: half a sentence."""

    wrong: Wrong
    says: str


@dataclass(frozen=True, slots=True)
class UnknownFormat:
    """An intact header of a format or codec that this version does not know: left alone."""

    says: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What all shards of a namespace have in common.

    writer_count: shards per chunk; geometries: of each pipeline stage, whose writers are numbered
    one after the other.
    """

    namespace: NamespaceId
    writer_count: int
    geometries: tuple[ShardGeometry, ...]

    def geometry(self, writer_index: int) -> ShardGeometry:
        """The form of one writer's shards."""
        return self.geometries[writer_index * len(self.geometries) // self.writer_count]

    def misnamed(self, name: ShardName) -> Fault | None:
        """What is wrong with the name alone."""
        if name.writer_count == self.writer_count:
            return None
        says = f"is one of {name.writer_count} writers, the namespace has {self.writer_count}"
        return Fault(Wrong.NAME, says)


def head_bytes(head: bytes | bytearray) -> int:
    """How many bytes of the object a header needs that begins so, 0 if it is none."""
    try:
        return header_length(bytes(head))
    except Corrupt:
        return 0


def judge_header(
    name: ShardName, size: int, head: bytes, shape: Shape
) -> ShardHeader | Fault | UnknownFormat:
    """Whether a shard may lie under this name, by its first bytes and its size.

    head: at least `head_bytes` of it, if the object is as long. The blocks are another matter.
    """
    geometry = shape.geometry(name.writer_index)
    try:
        header = read_header(head)
    except Mismatch as error:
        return UnknownFormat(str(error))
    except Corrupt as error:
        if geometry.block_count_of(size) is None:
            return Fault(Wrong.SIZE, f"{size} bytes, which no shard of the namespace has")
        return Fault(Wrong.HEADER, str(error))
    identity = header.identity
    if identity.namespace != name.namespace:
        return Fault(Wrong.NAMESPACE, f"is a shard of namespace {identity.namespace}")
    stated = (identity.chunk_hash, identity.writer_index, identity.writer_count)
    if stated != (name.chunk_hash, name.writer_index, name.writer_count):
        writer = f"writer {identity.writer_index} of {identity.writer_count}"
        return Fault(Wrong.NAME, f"is chunk {identity.chunk_hash.hex()}, {writer}")
    if _form(header.geometry) != _form(geometry):
        return Fault(Wrong.HEADER, "states other groups or another chunk size than NAMESPACE.json")
    expected = geometry.shard_bytes(identity.block_count)
    if size != expected:
        return Fault(Wrong.SIZE, f"{size} bytes, {expected} by its header")
    return header


def _form(geometry: ShardGeometry) -> tuple[int, list[tuple[int, int]]]:
    """What a header repeats of a geometry: the groups have no names there."""
    groups = [(group.layer_count, group.page_bytes) for group in geometry.groups]
    return geometry.chunk_blocks, groups


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one group's blocks: where it lies in the object, and which blocks these are."""

    group_index: int
    first_block: int
    start: int
    length: int


def pieces(header: ShardHeader, piece_bytes: int) -> Iterator[Piece]:
    """All blocks of a shard in their order, in pieces of at most piece_bytes or of one block."""
    geometry, block_count = header.geometry, header.identity.block_count
    for group_index, group in enumerate(geometry.groups):
        step = max(1, piece_bytes // group.block_bytes)
        for first in range(0, block_count, step):
            count = min(step, block_count - first)
            yield Piece(
                group_index, first, *geometry.group_range(group_index, block_count, first, count)
            )


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of a chunk, as it was listed."""

    name: ShardName
    found: Listed


@dataclass(slots=True)
class Roll:
    """Puts the shards of one folder together as they are listed. Owned by the task that lists.

    Holds those whose companions are still to come: stores list a chunk's shards side by side.
    whole, youngest_s: of each whole chunk fingerprint and age of its youngest shard.
    """

    waiting: dict[bytes, list[Part]] = field(default_factory=dict)
    whole: array[int] = field(default_factory=lambda: array("Q"))
    youngest_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, part: Part) -> list[Part] | None:
        """The chunk's shards if this was the last one; the name must not be misnamed."""
        name = part.name
        parts = self.waiting.setdefault(name.chunk_hash, [])
        parts.append(part)
        if len(parts) < name.writer_count:
            return None
        del self.waiting[name.chunk_hash]
        self.whole.append(fingerprint(name.chunk_hash))
        self.youngest_s.append(min(each.found.age_s for each in parts))
        return parts


class Choice:
    """A sample of what it is shown, uniform and without repetition, whatever the order.

    The `count` names with the smallest hashes under a seed: so the same seed chooses the same
    shards as long as they are there.
    """

    def __init__(self, count: int, seed: int) -> None:
        """count: at least 1; seed: 0 to 2**64 - 1."""
        self._count = count
        self._seed = seed
        self._heap: list[tuple[int, str, Part]] = []

    def show(self, parts: Iterable[Part]) -> None:
        """Some more. Keys are unique, so parts are never compared."""
        for part in parts:
            key = part.found.key
            ranked = (-xxh3_64_intdigest(key.encode(), seed=self._seed), key, part)
            if len(self._heap) < self._count:
                heappush(self._heap, ranked)
            else:
                heappushpop(self._heap, ranked)

    @property
    def chosen(self) -> list[Part]:
        """In the order of their names."""
        return [part for _, _, part in sorted(self._heap, key=lambda each: each[1])]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Where index and listing of one folder differ.

    gone: records of chunks that are live in the index and not whole in the bucket; unlisted: whole
    chunks that the index does not know, of which `young` are too young to be expected there;
    forgotten: whole chunks that it knows as dead or below the watermark.
    """

    gone: RecordSet
    unlisted: int
    young: int
    forgotten: int


def compare(folder: str, snapshot: Snapshot, roll: Roll, min_age_s: float) -> Agreement:
    """snapshot: taken before the folder was listed. What is live in it was whole by then."""
    records = _records_of(snapshot, folder)
    fps = np.array(roll.whole, np.uint64)
    live = records.live(snapshot.watermark_s)
    at, known = records.find(fps)
    is_live = known & live[at] if len(records) else known
    is_young = np.array(roll.youngest_s, np.float64) < min_age_s
    return Agreement(
        gone=records.take(live & ~np.isin(records.fps, fps)),
        unlisted=int((~known).sum()),
        young=int((~known & is_young).sum()),
        forgotten=int((known & ~is_live).sum()),
    )


def reports_of(gone: RecordSet) -> RecordSet:
    """Reports that these are gone, as old as what is known: any newer use or upload wins."""
    return make_records(gone.fps, gone.seen_s, 0, DEAD) if len(gone) else EMPTY


def unchanged(snapshot: Snapshot, gone: RecordSet) -> RecordSet:
    """Those of which a later snapshot still knows just this."""
    found = snapshot.look_up(gone.fps)
    return gone.take(found.live(snapshot.watermark_s) & (found.seen_s == gone.seen_s))


def _records_of(snapshot: Snapshot, folder: str) -> RecordSet:
    """What is known of one fan-out folder: as little as possible is copied."""
    base, recent = snapshot.base, snapshot.recent
    older = base.take(np.arange(*_span(base.fps, folder)))
    return overlay(older, recent.take(slice(*_span(recent.fps, folder))))


def _span(fps: NDArray[np.uint64], folder: str) -> tuple[int, int]:
    """Where the folder's fingerprints stand among sorted ones."""
    first = int(folder, 16) << 56
    last = first + (1 << 56) - 1
    start = np.searchsorted(fps, np.uint64(first))
    return int(start), int(np.searchsorted(fps, np.uint64(last), side="right"))
