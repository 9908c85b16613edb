"""Looks into one shard: its header, and if wanted every block, against its name.

Rule upheld here: a verdict is about one upload. Every answer's ETag is compared with the listed
one, so bytes of two uploads are never mixed, and whoever acts on a verdict can name the upload that
it is about. What is wrong is decided in `core.verifying`. Bounded: `body_count` pieces in memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from s3kv.bucket.base import Missing
from s3kv.core.requests import Listed, Stat, ask
from s3kv.core.shard import ShardHeader, verify_blocks
from s3kv.core.verifying import (
    Fault,
    Part,
    Shape,
    UnknownFormat,
    Wrong,
    head_bytes,
    judge_header,
    pieces,
)
from s3kv.errors import Closed, Corrupt, S3KVError, Transient
from s3kv.runtime.index_tool import IndexTool

LOOKS_MAX: Final = 3
"""Uploads of one shard that are begun to be read: each may be replaced meanwhile."""

FAILURES_MAX: Final = 100
"""Shards in a row that may be impossible to read: then it is not the shards that are to blame."""

PIECE_BYTES: Final = 32 << 20
HEADER_TIMEOUT_S: Final = 20.0
PIECE_TIMEOUT_S: Final = 120.0

Depth: TypeAlias = Literal["headers", "bodies"]


@dataclass(frozen=True, slots=True)
class Good:
    """part: as it was judged, which may be a later upload than the one that was listed."""

    part: Part
    block_count: int


@dataclass(frozen=True, slots=True)
class Bad:
    """part: as for `Good`."""

    part: Part
    fault: Fault


@dataclass(frozen=True, slots=True)
class Vanished:
    """Deleted since it was listed."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """It could not be read; says: why."""

    says: str


Verdict: TypeAlias = Good | Bad | UnknownFormat | Vanished | Unchecked


class _Changed(Exception):
    """Another upload, or none, lies under the name by now."""


class Inspector:
    """Owned by one event loop; any number of looks at once."""

    def __init__(self, tool: IndexTool, shape: Shape, depth: Depth, body_count: int) -> None:
        """tool: for its store and clock only; body_count: bodies that are read at once."""
        self._tool = tool
        self._shape = shape
        self._depth = depth
        self._bodies = asyncio.Semaphore(body_count)
        self._failure_count = 0

    async def look(self, part: Part) -> Verdict:
        """What a shard is worth. Raises `S3KVError` if the store does not answer any more."""
        try:
            verdict = await self._look(part)
        except Closed:
            raise
        except S3KVError as error:
            self._failure_count += 1
            if self._failure_count >= FAILURES_MAX:
                raise
            return Unchecked(str(error))
        self._failure_count = 0
        return verdict

    async def _look(self, part: Part) -> Verdict:
        fault = self._shape.misnamed(part.name)
        if fault is not None:
            return Bad(part, fault)
        for _ in range(LOOKS_MAX):
            try:
                return await self._judge(part)
            except _Changed:
                reply = await self._tool.perform(ask(Stat(part.found.key)))
            if not isinstance(reply.value, Listed):
                return Vanished()
            part = replace(part, found=reply.value)
        return Unchecked("was written anew at every look")

    async def _judge(self, part: Part) -> Verdict:
        found, geometry = part.found, self._shape.geometry(part.name.writer_index)
        head = await self._read(found, 0, min(found.size, geometry.header_bytes), HEADER_TIMEOUT_S)
        needed = head_bytes(head)
        if len(head) < needed <= found.size:
            head = await self._read(found, 0, needed, PIECE_TIMEOUT_S)
        header = judge_header(part.name, found.size, bytes(head), self._shape)
        if isinstance(header, UnknownFormat):
            return header
        if isinstance(header, Fault):
            return Bad(part, header)
        if self._depth == "bodies":
            try:
                async with self._bodies:
                    await self._verify_body(found, header)
            except Corrupt as error:
                return Bad(part, Fault(Wrong.CHECKSUM, str(error)))
        return Good(part, header.identity.block_count)

    async def _verify_body(self, found: Listed, header: ShardHeader) -> None:
        for piece in pieces(header, PIECE_BYTES):
            data = await self._read(found, piece.start, piece.length, PIECE_TIMEOUT_S)
            with memoryview(data) as view:
                verify_blocks(header, header.geometry, piece.group_index, piece.first_block, view)

    async def _read(self, found: Listed, start: int, length: int, timeout_s: float) -> bytearray:
        """Bytes of the upload that was found. Raises `_Changed` if it is another one by now."""
        buffer = bytearray(length)
        if not length:
            return buffer  # no range of an empty object can be asked for
        with memoryview(buffer) as view:
            got = await self._tool.store.get_into(found.key, start, view, timeout_s=timeout_s)
        if isinstance(got, Missing) or (got.etag, got.total_bytes) != (found.etag, found.size):
            raise _Changed
        if got.received_bytes != length:
            raise Transient(f"{got.received_bytes} bytes came where {length} were asked for")
        return buffer
