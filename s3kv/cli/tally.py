"""What a listing amounts to: shards, chunks, tokens and index files, namespace by namespace.

Pure: fed with pages, asks nothing. Names that are not exactly ours are foreign: counted and named,
never opened. How many tokens a shard holds follows from its size and the namespace's layout, so
nothing is opened to count them either.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from s3kv.bucket.base import ObjectInfo
from s3kv.core import keys
from s3kv.core.chunking import chunk_blocks_for
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.ids import NamespaceId, fingerprint
from s3kv.core.namespace import Namespace

FOREIGN_NAMED_MAX: Final = 20


@dataclass(slots=True)
class Pile:
    """Objects of one kind."""

    count: int = 0
    total_bytes: int = 0
    oldest_age_s: float | None = None
    newest_age_s: float | None = None

    def add(self, found: ObjectInfo) -> None:
        """One more."""
        self.count += 1
        self.total_bytes += found.size
        oldest, newest = self.oldest_age_s, self.newest_age_s
        self.oldest_age_s = found.age_s if oldest is None else max(oldest, found.age_s)
        self.newest_age_s = found.age_s if newest is None else min(newest, found.age_s)


@dataclass(slots=True)
class NamespaceTally:
    """One namespace's objects. Owned by the task that lists.

    has_document: whether NAMESPACE.json is there; sizes: how many shards of writer 0 have each
    size; incomplete_count: chunks without all their writers' shards; newest_shard: the key of the
    youngest, the greatest key among equals.
    """

    id: NamespaceId
    has_document: bool = False
    shards: Pile = field(default_factory=Pile)
    ticks: Pile = field(default_factory=Pile)
    runs: Pile = field(default_factory=Pile)
    segments: Pile = field(default_factory=Pile)
    sets: Pile = field(default_factory=Pile)
    quarantine: Pile = field(default_factory=Pile)
    sizes: Counter[int] = field(default_factory=Counter)
    newest_shard: ObjectInfo | None = None
    fps: array[int] = field(default_factory=lambda: array("Q"))
    _missing: dict[bytes, int] = field(default_factory=dict)
    _chunk_count: int = 0

    @property
    def chunk_count(self) -> int:
        """Chunks with all their shards."""
        return self._chunk_count

    @property
    def incomplete_count(self) -> int:
        """Chunks that wait for a shard, or have lost one."""
        return len(self._missing)

    @property
    def total_bytes(self) -> int:
        """Bytes of everything that is ours."""
        return self.shards.total_bytes + self.quarantine.total_bytes + self.index_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of index files and pinned sets."""
        piles = (self.ticks, self.runs, self.segments, self.sets)
        return sum(pile.total_bytes for pile in piles)

    def add(self, found: ObjectInfo) -> bool:
        """Count one object of this namespace; False if its name is foreign."""
        key = found.key
        if (shard := keys.parse_shard_key(key)) is not None:
            self._add_shard(shard, found)
        elif keys.parse_tick_key(key) is not None:
            self.ticks.add(found)
        elif keys.parse_run_key(key) is not None:
            self.runs.add(found)
        elif keys.parse_segment_key(key) is not None:
            self.segments.add(found)
        elif keys.parse_set_key(key) is not None:
            self.sets.add(found)
        elif keys.parse_quarantine_key(key) is not None:
            self.quarantine.add(found)
        elif key == keys.namespace_key(self.id):
            self.has_document = True
        else:
            return False
        return True

    def _add_shard(self, shard: keys.ShardName, found: ObjectInfo) -> None:
        self.shards.add(found)
        if shard.writer_index == 0:
            self.sizes[found.size] += 1
        best = self.newest_shard
        if best is None or (found.modified_s, found.key) > (best.modified_s, best.key):
            self.newest_shard = found
        missing = self._missing.get(shard.chunk_hash, shard.writer_count) - 1
        if missing > 0:
            self._missing[shard.chunk_hash] = missing
            return
        self._missing.pop(shard.chunk_hash, None)
        self._chunk_count += 1
        self.fps.append(fingerprint(shard.chunk_hash))


@dataclass(slots=True)
class Foreign:
    """Objects under the prefix that are not the archive's. names: the first few top-level ones."""

    pile: Pile = field(default_factory=Pile)
    names: list[str] = field(default_factory=list)

    def add(self, found: ObjectInfo, name: str) -> None:
        """One more. name: what to call it, several objects may share one."""
        self.pile.add(found)
        if name not in self.names and len(self.names) < FOREIGN_NAMED_MAX:
            self.names.append(name)


@dataclass(slots=True)
class ArchiveTally:
    """Everything under a prefix."""

    namespaces: dict[str, NamespaceTally] = field(default_factory=dict)
    foreign: Foreign = field(default_factory=Foreign)
    object_count: int = 0

    def add(self, page: Iterable[ObjectInfo]) -> None:
        """Count one page of a listing."""
        for found in page:
            self.object_count += 1
            top, slash, rest = found.key.partition("/")
            if not _is_namespace(top) or not slash:
                self.foreign.add(found, top + slash)
                continue
            tally = self.namespaces.get(top)
            if tally is None:
                tally = self.namespaces[top] = NamespaceTally(NamespaceId(top))
            if not tally.add(found):
                self.foreign.add(found, f"{top[:12]}/{rest}")

    def archives(self) -> list[NamespaceTally]:
        """The namespaces with anything of ours in them, by id."""
        found = (self.namespaces[name] for name in sorted(self.namespaces))
        return [tally for tally in found if tally.has_document or tally.total_bytes]


def _is_namespace(name: str) -> bool:
    try:
        keys.check_namespace_id(NamespaceId(name))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Contents:
    """What the sizes of writer 0's shards say.

    odd_count: shards whose size no shard of this namespace can have.
    """

    blocks: int
    tail_count: int
    odd_count: int


def geometry_of(namespace: Namespace, stage: int = 0) -> ShardGeometry:
    """The shape of a pipeline stage's shards. Raises ValueError if the fields describe none."""
    fields = namespace.fields
    groups = tuple(
        GroupGeometry(group.spec, len(group.layer_names), group.page_bytes)
        for group in fields.layout[stage].groups
    )
    return ShardGeometry(groups, chunk_blocks_for(fields.chunk_tokens, fields.block_tokens))


def geometries_of(namespace: Namespace) -> list[ShardGeometry]:
    """The same of every stage, in order. Raises ValueError if any of them describes none."""
    return [geometry_of(namespace, stage) for stage in range(len(namespace.fields.layout))]


def contents_of(tally: NamespaceTally, geometry: ShardGeometry) -> Contents:
    """Blocks archived, by the sizes of writer 0's shards."""
    blocks = tail_count = odd_count = 0
    for size, count in tally.sizes.items():
        block_count = geometry.block_count_of(size)
        if block_count is None:
            odd_count += count
            continue
        blocks += block_count * count
        tail_count += count if block_count < geometry.chunk_blocks else 0
    return Contents(blocks, tail_count, odd_count)
