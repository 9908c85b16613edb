"""What crosses between the scheduler's and the workers' connector instances, and nothing else.

Plans go down with every engine step, reports come up. Both are pickled to every rank, so they hold
plain values only (no tensors, no clients) and an idle step costs one shared empty `Plan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.namespace import LayoutDescriptor


@dataclass(frozen=True, slots=True)
class NamespaceTicket:
    """The namespace as the scheduler side formed it.

    document: canonical JSON of all fields (the bytes of NAMESPACE.json). Workers derive the id
    themselves and compare the layout with their own before they use it (docs/ARCHITECTURE.md).
    """

    document: bytes


@dataclass(frozen=True, slots=True)
class ChunkAddress:
    """One chunk: its names and those of all its blocks, in chain order."""

    chunk_hash: BlockHash
    parent_hash: BlockHash
    block_hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Blocks of one chunk to fetch: chunk blocks [first_block, first_block + len(block_ids))."""

    address: ChunkAddress
    first_block: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadJob:
    """The load of one request: parts in chain order, without holes."""

    request_id: str
    namespace: NamespaceId
    parts: tuple[LoadPart, ...]

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Every block that the load writes, in chain order."""
        return tuple(b for part in self.parts for b in part.block_ids)


@dataclass(frozen=True, slots=True)
class AbandonedLoad:
    """A promise that could not be planned: reported as failed at once so that nobody waits."""

    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One chunk to archive from `block_ids` (pinned in the block pool until staged).

    rewrite: the archive's copy is known bad, so a HEAD that finds it means nothing.
    """

    job_id: int
    namespace: NamespaceId
    address: ChunkAddress
    block_ids: tuple[int, ...]
    rewrite: bool


@dataclass(frozen=True, slots=True)
class Plan(KVConnectorMetadata):
    """What the workers shall do in one engine step.

    ticket: the namespace, repeated until a worker acknowledged it; touched and forgotten:
    (chunk hash, blocks) whose last use is refreshed / whose loss is recorded by the first writer;
    ended: requests finished or aborted while their load ran, so that fetching may stop.
    """

    ticket: NamespaceTicket | None = None
    loads: tuple[LoadJob, ...] = ()
    abandoned: tuple[AbandonedLoad, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    touched: tuple[tuple[BlockHash, int], ...] = ()
    forgotten: tuple[tuple[BlockHash, int], ...] = ()
    ended: frozenset[str] = frozenset()


EMPTY_PLAN = Plan()
_K = TypeVar("_K", str, int)


@dataclass(frozen=True, slots=True)
class LayoutHandshake(KVConnectorHandshakeMetadata):
    """A worker's view of its own KV bytes, sent up once at start-up.

    layout: None where the worker cannot take part; refusal: then why, else the empty string; rank:
    of the worker in its engine, so that what is said twice counts once.
    """

    layout: LayoutDescriptor | None
    geometry: ShardGeometry | None = None
    refusal: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class FailedChunk:
    """A chunk whose load failed, with the word the miss counter uses for it.

    namespace: in which it was looked for, perhaps one of before a reset; lost: the archive's copy
    is gone or wrong (as against a store that did not answer).
    """

    namespace: NamespaceId
    chunk_hash: BlockHash
    block_count: int
    reason: str
    lost: bool


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """What workers did since their last report; `aggregate` is associative and commutative.

    layouts: handshakes, repeated until a ticket arrives; opened: how many ranks opened which
    namespace; staged: save job -> ranks whose copy is complete (or that dropped it); saved: save
    job -> ranks where it became durable; unsaved: save job -> why not; failed: chunks whose load
    failed; load_s: request -> longest time a rank took; read_only: why this rank cannot write.
    """

    layouts: tuple[LayoutHandshake, ...] = ()
    opened: dict[str, int] = field(default_factory=dict)
    staged: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    unsaved: dict[int, str] = field(default_factory=dict)
    failed: tuple[FailedChunk, ...] = ()
    load_s: dict[str, float] = field(default_factory=dict)
    read_only: str = ""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        """Union of two reports: counts add up, times take the maximum."""
        assert isinstance(other, Report)
        return Report(
            layouts=self.layouts + other.layouts,
            opened=_added(self.opened, other.opened),
            staged=_added(self.staged, other.staged),
            saved=_added(self.saved, other.saved),
            unsaved={**self.unsaved, **other.unsaved},
            failed=self.failed + other.failed,
            load_s={
                k: max(self.load_s.get(k, 0.0), other.load_s.get(k, 0.0))
                for k in self.load_s.keys() | other.load_s.keys()
            },
            read_only=self.read_only or other.read_only,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (
            self.layouts
            or self.opened
            or self.staged
            or self.saved
            or self.unsaved
            or self.failed
            or self.load_s
            or self.read_only
        )


def _added(a: dict[_K, int], b: dict[_K, int]) -> dict[_K, int]:
    return {k: a.get(k, 0) + b.get(k, 0) for k in a.keys() | b.keys()}
