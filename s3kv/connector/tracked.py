"""What the scheduler side remembers of one request, from arrival to finish."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from s3kv.config import RequestOptions, parse_request_options
from s3kv.core.chunking import Chunk, block_chain, prompt_chunks
from s3kv.core.ids import BlockHash
from s3kv.core.reasons import MissReason
from s3kv.errors import ConfigError

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

CONTENT_ID = re.compile(r"[0-9a-f]{64,128}")
"""What the engine's own digests of images look like (blake3, SHA-256, SHA-512)."""
MAX_LOAD_ATTEMPTS = 2
"""Loads per request; after that many failures it is computed (FAULTS 16)."""


@dataclass(frozen=True, slots=True)
class ChainGeometry:
    """How a request's hashes become blocks and chunks.

    block_tokens: the scheduler's block size; hashes_per_block: engine hashes per block;
    chunk_blocks and min_tail_blocks in blocks.
    """

    block_tokens: int
    hashes_per_block: int
    chunk_blocks: int
    min_tail_blocks: int


@dataclass(frozen=True, slots=True)
class Promise:
    """A hit that was answered to the engine and not yet allocated: blocks [local, end)."""

    chunks: tuple[Chunk, ...]
    local_blocks: int
    end_block: int

    @property
    def block_count(self) -> int:
        """Blocks that the load will write."""
        return self.end_block - self.local_blocks


@dataclass(slots=True)
class Tracked:
    """One request. Owned by the engine's scheduling thread.

    refusal: why this request takes no part, or None; started_s: monotonic
    time of the first lookup; probe: HEADs under way for it; external_tokens: tokens that a load
    really delivered; load_s: how long loads took.
    """

    request: Request
    options: RequestOptions
    geometry: ChainGeometry
    refusal: MissReason | None
    started_s: float
    probe: Future[tuple[Chunk, ...]] | None = None
    promise: Promise | None = None
    attempts: int = 0
    external_tokens: int = 0
    load_s: float = 0.0
    miss_reason: MissReason | None = None
    save_chunks: list[Chunk] = field(default_factory=list)
    next_save: int = 0
    waits_since_s: float | None = None
    _chain: list[BlockHash] = field(default_factory=list)
    _mark: tuple[int, bytes] = (-1, b"")

    def client_report(self) -> dict[str, object]:
        """What the client is told: the engine's own count over-reports after failures."""
        report: dict[str, object] = {
            "hit_tokens": self.external_tokens,
            "load_s": round(self.load_s, 6),
        }
        if self.missed_by is not None:
            report["miss_reason"] = self.missed_by.value
        return {"s3kv": report}

    @property
    def missed_by(self) -> MissReason | None:
        """Why nothing came, or less than was promised; None if all is well."""
        if self.external_tokens and self.miss_reason is not MissReason.LOAD_FAILED:
            return None
        return self.miss_reason or MissReason.NOT_LOOKED_UP

    def chain(self) -> list[BlockHash]:
        """Hashes of all full blocks so far, one per scheduler block (grows with decoding)."""
        hashes = self.request.block_hashes
        # A streaming session may cut its chain and grow it anew: the length alone says too little.
        mark = (len(hashes), bytes(hashes[-1]) if hashes else b"")
        if mark != self._mark:
            self._mark = mark
            self._chain = block_chain(hashes, self.geometry.hashes_per_block)
        return self._chain


@dataclass(slots=True)
class RequestTotals:
    """What became of all requests that have ended. Owned by the engine's scheduling thread.

    misses: by reason, as their clients were told.
    """

    count: int = 0
    hit_count: int = 0
    hit_tokens: int = 0
    misses: Counter[MissReason] = field(default_factory=Counter)

    def add(self, tracked: Tracked) -> None:
        """One more has ended."""
        self.count += 1
        self.hit_count += tracked.external_tokens > 0
        self.hit_tokens += tracked.external_tokens
        if tracked.missed_by is not None:
            self.misses[tracked.missed_by] += 1

    def log(self) -> None:
        """One line for whoever looks at how well the archive did."""
        summary = {
            "side": "scheduler",
            "ended_requests": self.count,
            "hit_requests": self.hit_count,
            "hit_tokens": self.hit_tokens,
            "misses": {reason.value: count for reason, count in self.misses.items()},
        }
        logger.info("s3kv: summary %s", json.dumps(summary, sort_keys=True))


def track(request: Request, geometry: ChainGeometry, now_s: float) -> Tracked:
    """Start to remember a request; one with bad per-request options takes no part, and says so."""
    params: Mapping[str, object] = request.kv_transfer_params or {}
    refusal = MissReason.ADAPTER if request.lora_request is not None else None
    if any(not CONTENT_ID.fullmatch(str(f.identifier)) for f in request.mm_features or ()):
        # The client named its images itself, or the engine numbered them: no digest of content.
        refusal = MissReason.NAMED_MEDIA
    try:
        options = parse_request_options(params.get("s3kv"))
    except ConfigError as error:
        logger.warning("s3kv: request %s: %s", request.request_id, error)
        options, refusal = parse_request_options(None), MissReason.BAD_OPTIONS
    tracked = Tracked(
        request=request, options=options, geometry=geometry, refusal=refusal, started_s=now_s
    )
    if refusal is None:
        chain = tracked.chain()
        prompt_blocks = min(request.num_prompt_tokens // geometry.block_tokens, len(chain))
        tracked.save_chunks = prompt_chunks(
            chain, prompt_blocks, geometry.chunk_blocks, geometry.min_tail_blocks
        )
    return tracked
