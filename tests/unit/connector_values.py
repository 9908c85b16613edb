"""Plain stand-ins for the engine's values, and the connector's own modules for its unit tests.

Importing any module of `s3kv.connector` imports vLLM, so these tests are skipped without it. vLLM's
libraries warn while they are imported, and collecting tests makes warnings errors.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
    from s3kv.connector.guard import Guard
    from s3kv.connector.loads import LoadBook
    from s3kv.connector.lookup_desk import AVOID_LOST_S, AVOID_S, LOST_MAX, LookupDesk
    from s3kv.connector.messages import (
        ChunkAddress,
        FailedChunk,
        LayoutHandshake,
        Plan,
        Report,
        SaveJob,
    )
    from s3kv.connector.outbox import Outbox
    from s3kv.connector.pins import PinBoard
    from s3kv.connector.saver import Saver
    from s3kv.connector.saves import PIN_REPORT_S, SaveContext, SavePlanner, address_of
    from s3kv.connector.staging import Staging
    from s3kv.connector.tracked import ChainGeometry, Promise, RequestTotals, Tracked, track
    from s3kv.connector.worker_archive import WorkerArchive

from s3kv.core.ids import BlockHash, NamespaceId

__all__ = [
    "AVOID_LOST_S",
    "AVOID_S",
    "BLOCK",
    "CHUNK_BLOCKS",
    "GEOMETRY",
    "LOST_MAX",
    "NS",
    "PIN_REPORT_S",
    "ChainGeometry",
    "ChunkAddress",
    "FailedChunk",
    "FakeBlocks",
    "FakePool",
    "FakeRequest",
    "Guard",
    "LayoutHandshake",
    "LoadBook",
    "LookupDesk",
    "Outbox",
    "PinBoard",
    "Plan",
    "Promise",
    "Report",
    "RequestTotals",
    "SaveContext",
    "SaveJob",
    "SavePlanner",
    "Saver",
    "Staging",
    "Tracked",
    "WorkerArchive",
    "address_of",
    "chain_of",
    "step_of",
    "track",
]

NS = NamespaceId("0123456789abcdef0123456789abcdef")
BLOCK = 16
CHUNK_BLOCKS = 4
GEOMETRY = ChainGeometry(
    block_tokens=BLOCK, hashes_per_block=1, chunk_blocks=CHUNK_BLOCKS, min_tail_blocks=2
)


def chain_of(block_count: int, seed: str = "a") -> list[BlockHash]:
    return [
        BlockHash(hashlib.sha256(f"{seed}{index}".encode()).digest())
        for index in range(block_count)
    ]


@dataclass
class FakeRequest:
    """The fields of vLLM's request that the connector reads."""

    request_id: str
    num_prompt_tokens: int
    block_hashes: list[BlockHash]
    num_computed_tokens: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None
    lora_request: object | None = None
    mm_features: list[Any] = field(default_factory=list)
    skip_reading_prefix_cache: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens

    @classmethod
    def of(cls, token_count: int, name: str = "r", seed: str = "a", **more: Any) -> FakeRequest:
        return cls(name, token_count, chain_of(token_count // BLOCK, seed), **more)


@dataclass
class FakePool:
    """vLLM's block pool as far as references go."""

    block_count: int = 64
    blocks: list[SimpleNamespace] = field(default_factory=list)
    freed_order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = [SimpleNamespace(block_id=i, refs=0) for i in range(self.block_count)]

    def touch(self, blocks: Sequence[SimpleNamespace]) -> None:
        for block in blocks:
            block.refs += 1

    def free_blocks(self, blocks: Sequence[SimpleNamespace]) -> None:
        for block in blocks:
            block.refs -= 1
            assert block.refs >= 0
            self.freed_order.append(block.block_id)

    @property
    def held(self) -> set[int]:
        return {block.block_id for block in self.blocks if block.refs}


@dataclass
class FakeBlocks:
    """What `kv_connector_block_state` answers for each request."""

    tables: dict[str, list[int]]

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...] | None:
        table = self.tables.get(request_id)
        return None if table is None else (table,)


def step_of(tokens: Mapping[str, int], tables: Mapping[str, list[int]] | None) -> SimpleNamespace:
    """A scheduler output: tokens per request of one engine step."""
    state = None if tables is None else FakeBlocks(dict(tables))
    return SimpleNamespace(num_scheduled_tokens=dict(tokens), kv_connector_block_state=state)
