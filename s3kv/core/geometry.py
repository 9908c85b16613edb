"""Where every byte of a shard lies: header, then one block-major tensor per KV-cache group.

Rule upheld here: offsets follow from the geometry and the number of blocks alone, so a reader
computes them before it has seen a byte, and any run of blocks of a group is one byte range. Pages
are opaque. What the header says is `s3kv.core.shard`'s matter; only its length is fixed here.

Layout of a shard of n blocks, groups 0..G-1 (FORMAT.md):

    header_bytes | g0: uint8[n, layers_0, page_0] | g1: uint8[n, layers_1, page_1] | ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADER_ALIGN_BYTES: Final = 4096

# The header's length is a formula, not a measurement, so that other implementations can compute
# it too: an allowance for the fixed-width metadata, one per tensor, and what each block adds.
_FIXED_ALLOWANCE_BYTES: Final = 1024
_GROUP_ALLOWANCE_BYTES: Final = 160
_BLOCK_HASH_BYTES: Final = 64
_BLOCK_GROUP_BYTES: Final = 16 + 8

# Limits, far above any real cache, that keep what a hostile header can ask for small.
_MAX_CHUNK_BLOCKS: Final = 4096
_MAX_GROUPS: Final = 64
_MAX_SHARD_BYTES: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """One KV-cache group: `layer_count` opaque pages of `page_bytes` bytes per block.

    name: for messages only, not stored. Raises ValueError unless both numbers are positive.
    """

    name: str
    layer_count: int
    page_bytes: int

    def __post_init__(self) -> None:
        """Refuse groups without bytes."""
        if self.layer_count < 1 or self.page_bytes < 1:
            raise ValueError(
                f"group {self.name}: {self.layer_count} layers of {self.page_bytes} bytes"
            )

    @property
    def block_bytes(self) -> int:
        """Bytes of this group in one block."""
        return self.layer_count * self.page_bytes


@dataclass(frozen=True, slots=True)
class ShardGeometry:
    """The shape of all shards of a namespace: its groups in order and the blocks of a full chunk.

    Raises ValueError outside 1..64 groups, 1..4096 blocks or 1 TiB.
    """

    groups: tuple[GroupGeometry, ...]
    chunk_blocks: int

    def __post_init__(self) -> None:
        """Refuse what no header of bounded length can describe."""
        if not 1 <= len(self.groups) <= _MAX_GROUPS:
            raise ValueError(f"{len(self.groups)} groups, not 1..{_MAX_GROUPS}")
        if not 1 <= self.chunk_blocks <= _MAX_CHUNK_BLOCKS:
            raise ValueError(f"{self.chunk_blocks} blocks in a chunk, not 1..{_MAX_CHUNK_BLOCKS}")
        if self.slot_bytes > _MAX_SHARD_BYTES:
            raise ValueError(f"a shard of {self.slot_bytes} bytes, not <= {_MAX_SHARD_BYTES}")

    @property
    def header_bytes(self) -> int:
        """Length of the header of *every* shard, tails included: a multiple of 4096."""
        return _header_bytes(self.chunk_blocks, len(self.groups))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all groups together."""
        return sum(group.block_bytes for group in self.groups)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a full chunk's shard: header and data. No shard of this geometry is larger."""
        return self.header_bytes + self.chunk_blocks * self.block_bytes

    def shard_bytes(self, block_count: int) -> int:
        """Exact object size of a shard of `block_count` blocks (1..chunk_blocks)."""
        self._check_block_count(block_count)
        return self.header_bytes + block_count * self.block_bytes

    def block_count_of(self, shard_bytes: int) -> int | None:
        """The inverse of `shard_bytes`; None for a size that no shard has."""
        block_count, rest = divmod(shard_bytes - self.header_bytes, self.block_bytes)
        return None if rest or not 1 <= block_count <= self.chunk_blocks else block_count

    def group_range(
        self, group_index: int, block_count: int, first_block: int, count: int
    ) -> tuple[int, int]:
        """Byte range of the blocks [first_block, first_block + count) of one group.

        block_count: blocks of the whole shard, on which the later groups' positions depend;
        first_block counts from the start of the chunk. Returns (start, length), start from byte 0
        of the object. Raises ValueError if there are no such blocks.
        """
        self._check_block_count(block_count)
        if not 0 <= group_index < len(self.groups):
            raise ValueError(f"group {group_index} of {len(self.groups)}")
        if not (first_block >= 0 and 1 <= count <= block_count - first_block):
            raise ValueError(f"{count} blocks from {first_block} on of {block_count}")
        before = sum(group.block_bytes for group in self.groups[:group_index])
        block_bytes = self.groups[group_index].block_bytes
        start = self.header_bytes + block_count * before + first_block * block_bytes
        return start, count * block_bytes

    def _check_block_count(self, block_count: int) -> None:
        if not 1 <= block_count <= self.chunk_blocks:
            raise ValueError(f"{block_count} blocks in a chunk of {self.chunk_blocks}")


def _header_bytes(chunk_blocks: int, group_count: int) -> int:
    per_block = _BLOCK_HASH_BYTES + _BLOCK_GROUP_BYTES * group_count
    need = _FIXED_ALLOWANCE_BYTES + _GROUP_ALLOWANCE_BYTES * group_count + per_block * chunk_blocks
    return -(-need // HEADER_ALIGN_BYTES) * HEADER_ALIGN_BYTES


MAX_HEADER_BYTES: Final = _header_bytes(_MAX_CHUNK_BLOCKS, _MAX_GROUPS)
"""No header is longer: a reader refuses a larger announced length before it asks for memory."""
