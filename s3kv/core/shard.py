"""One shard: a safetensors file whose header vouches for every byte.

Rule upheld here: what `verify_header` and `verify_blocks` accept is byte for byte what `seal` was
given, for exactly the identity that the reader expects. The header's checksum covers the header,
the header's per-block checksums cover the data; so no byte of the file is uncovered. The header's
bytes are described and made in `s3kv.core.shard_header`; where the blocks lie is
`s3kv.core.geometry`'s matter.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import ZERO_HASH
from s3kv.core.shard_header import (
    NONCE_BYTES,
    SHARD_FORMAT,
    ShardHeader,
    ShardIdentity,
    encode_header,
    header_length,
    read_header,
)
from s3kv.errors import Corrupt, Mismatch

__all__ = [
    "NONCE_BYTES",
    "SHARD_FORMAT",
    "ShardHeader",
    "ShardIdentity",
    "header_length",
    "read_header",
    "seal",
    "verify_blocks",
    "verify_header",
]


def seal(
    slot: memoryview, geometry: ShardGeometry, identity: ShardIdentity, nonce: bytes
) -> memoryview:
    """Checksum the blocks already lying in `slot`, write the header in front of them.

    slot: writable contiguous uint8[>= shard_bytes], the blocks at `geometry.group_range`; bytes
    behind the shard stay untouched. nonce: 16 random bytes, so that two uploads of one shard have
    different ETags. Returns slot[:shard_bytes], the object's body.

    Copies no data: it is read once, in place. Allocated are the header (a few times over while it
    is built) and one int per block and group: a constant per namespace, whatever the pages' size.
    Raises ValueError for a slot, chunk or nonce of the wrong size.
    """
    slot = _flat(slot)
    block_count = identity.block_count
    shard_bytes = geometry.shard_bytes(block_count)
    if slot.readonly or len(slot) < shard_bytes:
        raise ValueError(f"a slot of {len(slot)} bytes cannot hold a shard of {shard_bytes}")
    checksums = []
    for group_index, group in enumerate(geometry.groups):
        start, length = geometry.group_range(group_index, block_count, 0, block_count)
        checksums.append(_block_checksums(slot[start : start + length], group.block_bytes))
    header = encode_header(ShardHeader(identity, geometry, nonce, tuple(checksums)))
    slot[: len(header)] = header
    return slot[:shard_bytes]


def verify_header(
    head: memoryview | bytes, geometry: ShardGeometry, identity: ShardIdentity
) -> ShardHeader:
    """The header at the start of `head`, if it is intact and states exactly this identity.

    head: uint8, the object from byte 0, at least header_bytes of it. A parent hash is compared
    where both sides know it; the block hashes commit to it anyway. The object's *length* is not in
    the header: compare the store's answer with `geometry.shard_bytes`. Raises Corrupt if the bytes
    are not what a writer wrote, Mismatch (naming the field) if they are somebody else's.
    """
    header = read_header(head)
    stored = header.identity
    _same("namespace", stored.namespace, identity.namespace)
    _same("chunk_hash", stored.chunk_hash.hex(), identity.chunk_hash.hex())
    _same("writer", stored.writer_index, identity.writer_index)
    _same("writers", stored.writer_count, identity.writer_count)
    if stored.block_hashes != identity.block_hashes:
        raise Mismatch("shard states other block_hashes than expected")
    if ZERO_HASH not in (stored.parent_hash, identity.parent_hash):
        _same("parent_hash", stored.parent_hash.hex(), identity.parent_hash.hex())
    _same("chunk_blocks", header.geometry.chunk_blocks, geometry.chunk_blocks)
    _same("groups", _shapes(header.geometry), _shapes(geometry))
    return header


def verify_blocks(
    header: ShardHeader,
    geometry: ShardGeometry,
    group_index: int,
    first_block: int,
    data: memoryview,
) -> None:
    """Check one group's run of blocks, starting at `first_block` of the chunk.

    header: as `verify_header` returned it for this geometry; data: contiguous uint8[n *
    block_bytes], n >= 1; only these bytes are read, without a copy. Raises Corrupt, naming the
    block, if a byte is wrong or the length is not that of whole blocks of this chunk; ValueError if
    there is no such group or first block.
    """
    group_count = min(len(header.block_checksums), len(geometry.groups))
    if not 0 <= group_index < group_count or not 0 <= first_block < header.identity.block_count:
        raise ValueError(f"no block {first_block} of group {group_index} in this shard")
    checksums = header.block_checksums[group_index]
    block_bytes = geometry.groups[group_index].block_bytes
    data = _flat(data)
    count, rest = divmod(len(data), block_bytes)
    if rest or not 1 <= count <= len(checksums) - first_block:
        raise Corrupt(
            f"{len(data)} bytes from block {first_block} of group {group_index} on, whose "
            f"{len(checksums)} blocks have {block_bytes} bytes each"
        )
    expected = checksums[first_block : first_block + count]
    for offset, found in enumerate(_block_checksums(data, block_bytes)):
        if found != expected[offset]:
            raise Corrupt(f"block {first_block + offset} of group {group_index} is damaged")


def _same(field: str, stored: object, expected: object) -> None:
    if stored != expected:
        raise Mismatch(f"shard states {field} {stored}, expected {expected}")


def _shapes(geometry: ShardGeometry) -> list[tuple[int, int]]:
    return [(group.layer_count, group.page_bytes) for group in geometry.groups]


def _block_checksums(data: memoryview, block_bytes: int) -> tuple[int, ...]:
    """XXH3-64 of each block of contiguous data, read in place."""
    return tuple(
        xxh3_64_intdigest(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)
    )


def _flat(view: memoryview) -> memoryview:
    """The same bytes as uint8[n]. Raises ValueError where that would need a copy."""
    if not view.c_contiguous:
        raise ValueError("a contiguous buffer is needed")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
