"""The header of a shard: identity, checksums and tensor table in a constant number of bytes.

Rule upheld here: headers are canonical. Equal contents have equal bytes, a header that
`encode_header` would not have written is refused, and a checksum covers all of it: length prefix,
JSON and padding. The checksums (XXH3-64) find accidents, not forgeries: who may write to the
bucket is trusted. Sealing and verifying whole shards is `s3kv.core.shard`'s part.

Layout (FORMAT.md): uint64 little-endian length of the rest, then ASCII JSON with sorted keys and no
whitespace, then spaces up to `ShardGeometry.header_bytes`. `__metadata__`, for C blocks in a full
chunk and G groups, all of fixed width (what a tail chunk does not use is '0'):

    block_hashes     64*C   hex hashes of the blocks in order
    checksums        16*G*C XXH3-64 of each block's bytes, hex; group after group, C each
    chunk_hash       64
    codec            8      "none" and spaces; others are unknown
    format           6      "s3kv/1"
    frames           8*G*C  '0': reserved for the coded size of each block, in checksums' order
    header_checksum  16     XXH3-64 of the whole header with this value as sixteen '0', hex
    namespace        32
    nonce            32     hex
    parent_hash      64
    writer, writers  3      decimal

The places of the length prefix and of header_checksum are the same in every format version, so
that an intact header of an unknown version is told from a damaged one.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from s3kv.core.columnfile import is_other_version
from s3kv.core.geometry import (
    HEADER_ALIGN_BYTES,
    MAX_HEADER_BYTES,
    GroupGeometry,
    ShardGeometry,
)
from s3kv.core.ids import HASH_BYTES, BlockHash, NamespaceId
from s3kv.core.keys import MAX_WRITERS, check_namespace_id
from s3kv.core.namespace import canonical_json
from s3kv.errors import Corrupt, Mismatch, NewerFormat

SHARD_FORMAT: Final = "s3kv/1"
NONCE_BYTES: Final = 16

_LENGTH: Final = struct.Struct("<Q")
_CODEC_NONE: Final = "none    "
_NO_CHECKSUM: Final = "0" * 16
_CHECKSUM_FIELD: Final = b'"header_checksum":"'
_METADATA_FIELDS: Final = frozenset(
    (
        *("block_hashes", "checksums", "chunk_hash", "codec", "format", "frames"),
        *("header_checksum", "namespace", "nonce", "parent_hash", "writer", "writers"),
    )
)


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which bytes these are: everything a reader knows before the GET.

    block_hashes: of the chunk's blocks in order, the last one being chunk_hash. parent_hash: of the
    block before the chunk; in a chain's first chunk the engine's NONE_HASH, or ZERO_HASH where it
    is not known. Raises ValueError if the parts contradict each other.
    """

    namespace: NamespaceId
    chunk_hash: BlockHash
    parent_hash: BlockHash
    block_hashes: tuple[BlockHash, ...]
    writer_index: int
    writer_count: int

    def __post_init__(self) -> None:
        """Refuse an identity that no chunk has."""
        check_namespace_id(self.namespace)
        hashes = (self.chunk_hash, self.parent_hash, *self.block_hashes)
        if any(len(block_hash) != HASH_BYTES for block_hash in hashes):
            raise ValueError(f"a block hash is not {HASH_BYTES} bytes long")
        if not self.block_hashes or self.block_hashes[-1] != self.chunk_hash:
            raise ValueError("a chunk is named by the hash of its last block")
        if not 0 <= self.writer_index < self.writer_count <= MAX_WRITERS:
            raise ValueError(f"writer {self.writer_index} of {self.writer_count}")

    @property
    def block_count(self) -> int:
        """Blocks of the chunk."""
        return len(self.block_hashes)


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a header says: the identity, and what is needed to verify the blocks.

    geometry: in a header that was read, groups are named g0, g1, ... (names are not stored);
    nonce: 16 random bytes of this upload; block_checksums: XXH3-64 [group][block in chunk].
    """

    identity: ShardIdentity
    geometry: ShardGeometry
    nonce: bytes
    block_checksums: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Refuse a nonce of another width: the header's length would depend on it."""
        if len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(self.nonce)}")


def encode_header(header: ShardHeader) -> bytes:
    """The canonical bytes of a header: exactly geometry.header_bytes of them.

    Raises ValueError if the chunk has more blocks than the geometry allows.
    """
    document = {"__metadata__": _metadata(header), **_tensors(header)}
    text = canonical_json(document).encode("ascii")
    length = header.geometry.header_bytes - _LENGTH.size
    assert len(text) <= length, "header_bytes is an upper bound for every header"
    raw = _LENGTH.pack(length) + text.ljust(length)
    at = raw.index(_CHECKSUM_FIELD) + len(_CHECKSUM_FIELD)
    return raw[:at] + _header_checksum(raw, at) + raw[at + 16 :]


def read_header(head: memoryview | bytes) -> ShardHeader:
    """The header at the start of `head`, whatever identity it states.

    head: uint8, the object from byte 0, at least its header. Checks the header against its checksum
    and against what a writer would have written, not against expectations. Raises Corrupt or, for
    an intact header of another version NewerFormat, of another format or with an unknown codec
    Mismatch; never anything else, whatever the bytes.
    """
    raw = _intact(head)
    header = _decode(raw)
    if encode_header(header) != raw:
        raise Corrupt("shard header is not canonical")
    return header


def header_length(head: memoryview | bytes) -> int:
    """Bytes of the header that `head` begins with, for tools that do not know the geometry.

    head: uint8, at least the first 8 bytes of an object. Raises Corrupt unless the announced length
    is one that a shard can have (a multiple of 4096, bounded).
    """
    if len(head) < _LENGTH.size:
        raise Corrupt(f"{len(head)} bytes are no shard")
    total: int = _LENGTH.size + _LENGTH.unpack_from(head)[0]
    if total > MAX_HEADER_BYTES or total % HEADER_ALIGN_BYTES:
        raise Corrupt(f"no shard has a header of {total} bytes")
    return total


def _intact(head: memoryview | bytes) -> bytes:
    """The header's bytes, length prefix and padding included, if their checksum is right."""
    length = header_length(head)
    if len(head) < length:
        raise Corrupt(f"{len(head)} bytes of a shard header of {length}")
    raw = bytes(head[:length])
    at = raw.find(_CHECKSUM_FIELD) + len(_CHECKSUM_FIELD)
    if at < len(_CHECKSUM_FIELD) or raw[at : at + 16] != _header_checksum(raw, at):
        raise Corrupt("shard header is damaged")
    return raw


def _header_checksum(raw: bytes, at: int) -> bytes:
    """Sixteen hex digits over `raw`, with the sixteen bytes from `at` on taken as zeros."""
    zeroed = raw[:at] + _NO_CHECKSUM.encode("ascii") + raw[at + 16 :]
    return b"%016x" % xxh3_64_intdigest(zeroed)


def _metadata(header: ShardHeader) -> dict[str, str]:
    geometry, identity = header.geometry, header.identity
    width = geometry.chunk_blocks
    checksums = (
        "".join(f"{checksum:016x}" for checksum in group).ljust(16 * width, "0")
        for group in header.block_checksums
    )
    return {
        "block_hashes": b"".join(identity.block_hashes).hex().ljust(64 * width, "0"),
        "checksums": "".join(checksums),
        "chunk_hash": identity.chunk_hash.hex(),
        "codec": _CODEC_NONE,
        "format": SHARD_FORMAT,
        "frames": "0" * (8 * width * len(geometry.groups)),
        "header_checksum": _NO_CHECKSUM,
        "namespace": identity.namespace,
        "nonce": header.nonce.hex(),
        "parent_hash": identity.parent_hash.hex(),
        "writer": f"{identity.writer_index:03d}",
        "writers": f"{identity.writer_count:03d}",
    }


def _tensors(header: ShardHeader) -> dict[str, object]:
    geometry, block_count = header.geometry, header.identity.block_count
    tensors: dict[str, object] = {}
    for group_index, group in enumerate(geometry.groups):
        start, length = geometry.group_range(group_index, block_count, 0, block_count)
        start -= geometry.header_bytes
        tensors[f"g{group_index}"] = {
            "data_offsets": [start, start + length],
            "dtype": "U8",
            "shape": [block_count, group.layer_count, group.page_bytes],
        }
    return tensors


def _decode(raw: bytes) -> ShardHeader:
    """What an intact header says. Lenient about spelling: `read_header` encodes it again."""
    try:
        document = json.loads(raw[_LENGTH.size :].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise Corrupt("shard header is not JSON") from error
    metadata = document.get("__metadata__") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not all(type(v) is str for v in metadata.values()):
        raise Corrupt("shard header without metadata")
    if metadata.get("format") != SHARD_FORMAT:
        if is_other_version(metadata.get("format", ""), SHARD_FORMAT):
            raise NewerFormat("the shard", metadata["format"], SHARD_FORMAT)
        raise Mismatch(f"shard format {_short(metadata.get('format'))}, not {SHARD_FORMAT}")
    if metadata.keys() != _METADATA_FIELDS:
        raise Corrupt("shard metadata does not have exactly the fields of its format")
    if metadata["codec"] != _CODEC_NONE:
        raise Mismatch(f"shard codec {_short(metadata['codec'])} is unknown")
    shapes = [_shape(document.get(f"g{i}")) for i in range(len(document) - 1)]
    if not shapes:
        raise Corrupt("shard without a group")
    try:
        return _header_of(metadata, shapes)
    except ValueError as error:
        raise Corrupt(f"shard header: {error}") from error


def _header_of(metadata: dict[str, str], shapes: list[tuple[int, int, int]]) -> ShardHeader:
    """Put the parts together; ValueError where they do not fit."""
    block_count = shapes[0][0]
    chunk_blocks = len(metadata["block_hashes"]) // 64
    groups = tuple(GroupGeometry(f"g{i}", shape[1], shape[2]) for i, shape in enumerate(shapes))
    geometry = ShardGeometry(groups, chunk_blocks)
    geometry.shard_bytes(block_count)
    if not len(metadata["writer"]) == len(metadata["writers"]) == 3:
        raise ValueError("writer numbers are not of three digits")
    hashes = bytes.fromhex(metadata["block_hashes"])
    identity = ShardIdentity(
        NamespaceId(metadata["namespace"]),
        BlockHash(bytes.fromhex(metadata["chunk_hash"])),
        BlockHash(bytes.fromhex(metadata["parent_hash"])),
        tuple(BlockHash(hashes[32 * i : 32 * i + 32]) for i in range(block_count)),
        int(metadata["writer"]),
        int(metadata["writers"]),
    )
    checksums = bytes.fromhex(metadata["checksums"])
    if len(checksums) != 8 * chunk_blocks * len(groups):
        raise ValueError("wrong number of checksums")
    table = tuple(
        struct.unpack_from(f">{block_count}Q", checksums, 8 * chunk_blocks * i)
        for i in range(len(groups))
    )
    return ShardHeader(identity, geometry, bytes.fromhex(metadata["nonce"]), table)


def _shape(tensor: object) -> tuple[int, int, int]:
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(type(n) is int and 0 < n < 1 << 40 for n in shape)
    ):
        raise Corrupt("shard header with an odd tensor")
    blocks, layers, page = shape
    return blocks, layers, page


def _short(value: object) -> str:
    """A hostile value, fit for a message."""
    return repr(value)[:40]
