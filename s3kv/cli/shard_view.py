"""One shard, read as a stranger would: what its header says, and whether the bytes agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.cli.connection import REQUEST_TIMEOUT_S
from s3kv.cli.output import Document
from s3kv.cli.words import bytes_text
from s3kv.core.ids import ZERO_HASH
from s3kv.core.keys import parse_shard_key
from s3kv.core.shard import ShardHeader, header_length, read_header, verify_blocks
from s3kv.core.verifying import pieces
from s3kv.errors import Corrupt, Mismatch, Transient
from s3kv.runtime.inspecting import PIECE_BYTES, PIECE_TIMEOUT_S

_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ShardView:
    """What was found. header: None if unreadable; problem: what is wrong, or the empty string."""

    key: str
    size: int
    header: ShardHeader | None
    problem: str

    def document(self) -> Document:
        """For programs."""
        header = self.header
        if header is None:
            return {"key": self.key, "bytes": self.size, "problem": self.problem}
        identity, geometry = header.identity, header.geometry
        return {
            "key": self.key,
            "bytes": self.size,
            "problem": self.problem,
            "namespace": identity.namespace,
            "chunk_hash": identity.chunk_hash.hex(),
            "parent_hash": identity.parent_hash.hex(),
            "writer_index": identity.writer_index,
            "writer_count": identity.writer_count,
            "block_count": identity.block_count,
            "chunk_blocks": geometry.chunk_blocks,
            "header_bytes": geometry.header_bytes,
            "groups": [
                {"layer_count": group.layer_count, "page_bytes": group.page_bytes}
                for group in geometry.groups
            ],
            "nonce": header.nonce.hex(),
        }

    def pairs(self) -> list[tuple[str, str]]:
        """For people."""
        pairs = [("key", self.key), ("size", bytes_text(self.size))]
        if self.header is not None:
            identity, geometry = self.header.identity, self.header.geometry
            parent = identity.parent_hash
            groups = ", ".join(
                f"{group.layer_count} layers x {bytes_text(group.page_bytes)}"
                for group in geometry.groups
            )
            pairs += [
                ("blocks", f"{identity.block_count} of {geometry.chunk_blocks} in a full chunk"),
                ("groups", f"{groups} per block"),
                ("writer", f"{identity.writer_index} of {identity.writer_count}"),
                ("parent", "not known" if parent == ZERO_HASH else parent.hex()),
            ]
        return [*pairs, ("verified", self.problem or "header and every block are intact")]


async def read_shard(store: ObjectStore, key: str) -> ShardView:
    """Read and verify a whole shard, `PIECE_BYTES` at a time. Raises `S3KVError` of the store."""
    size, header = 0, None
    try:
        size, head = await _read_head(store, key)
        header = read_header(bytes(head))
        _check_name(key, size, header)
        for piece in pieces(header, PIECE_BYTES):
            with memoryview(bytearray(piece.length)) as data:
                await _fetch(store, key, piece.start, data)
                verify_blocks(header, header.geometry, piece.group_index, piece.first_block, data)
    except (Corrupt, Mismatch) as error:
        return ShardView(key, size, header, str(error))
    return ShardView(key, size, header, "")


async def _fetch(store: ObjectStore, key: str, start: int, buffer: memoryview) -> int:
    """Fill the buffer; the object's size. Raises `Corrupt` if the object is not there or ends."""
    outcome = await store.get_into(key, start, buffer, timeout_s=PIECE_TIMEOUT_S)
    if isinstance(outcome, Missing):
        raise Corrupt("there is no such shard")
    if outcome.received_bytes < len(buffer):
        raise Corrupt(f"ends after {outcome.total_bytes} bytes")
    return outcome.total_bytes


async def _read_head(store: ObjectStore, key: str) -> tuple[int, bytearray]:
    found = await store.stat(key, timeout_s=REQUEST_TIMEOUT_S)
    if isinstance(found, Missing):
        raise Corrupt("there is no such shard")
    length = bytearray(_LENGTH_BYTES)
    with memoryview(length) as buffer:
        await _fetch(store, key, 0, buffer)
    head = bytearray(header_length(bytes(length)))
    with memoryview(head) as buffer:
        size = await _fetch(store, key, 0, buffer)
    if size != found.size:
        raise Transient(f"{key} was written anew meanwhile: try again")
    return size, head


def _check_name(key: str, size: int, header: ShardHeader) -> None:
    """Raises `Mismatch` if the shard is not the one that its name promises, `Corrupt` by size."""
    name, identity = parse_shard_key(key), header.identity
    said = (
        identity.namespace,
        identity.chunk_hash,
        identity.writer_index,
        identity.writer_count,
    )
    if name is None or said != (
        name.namespace,
        name.chunk_hash,
        name.writer_index,
        name.writer_count,
    ):
        raise Mismatch("the header states another shard than the name")
    expected = header.geometry.shard_bytes(identity.block_count)
    if size != expected:
        raise Corrupt(f"{size} bytes, {expected} by its header")
