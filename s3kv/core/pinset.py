"""Pinned sets: chunks that neither age nor a size limit makes the archive forget.

Rule upheld here: a set is a file that people may copy and read, and one that is damaged, or was
made for another namespace or name, pins nothing by accident: it is refused. What a sequencer or a
sweeper does about a set is decided by `pins` and `forgetting`.

A set file is a `columnfile`: hashes uint8[n, 32], ascending, each once, and blocks uint16[n], how
many blocks a chunk had when it was pinned (0: it was not archived then).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.columnfile import (
    HEADER_MAX_BYTES,
    Column,
    hex_field,
    open_file,
    seal,
    verified_columns,
)
from s3kv.core.ids import HASH_BYTES, BlockHash, NamespaceId
from s3kv.core.keys import SET_NAME_MAX, is_set_name
from s3kv.errors import Corrupt, Mismatch

SET_FORMAT: Final = "s3kv-set/1"

SET_CHUNKS_MAX: Final = 1 << 20
"""Chunks in one set: bounds what a sequencer reads and keeps."""

_COLUMNS: Final = (Column("hashes", "U8", "|u1", (HASH_BYTES,)), Column("blocks", "U16", "<u2"))

SET_BYTES_MAX: Final = 8 + HEADER_MAX_BYTES + SET_CHUNKS_MAX * (HASH_BYTES + 2)


@dataclass(frozen=True, slots=True, eq=False)
class PinSet:
    """Chunks under a name. Arrays are not changed; `make_set` and `decode_set` make them.

    hashes: uint8[n, 32], ascending, each once; blocks: uint16[n], 0 where not known.
    """

    namespace: NamespaceId
    name: str
    hashes: NDArray[np.uint8]
    blocks: NDArray[np.uint16]

    def __len__(self) -> int:
        """How many chunks."""
        return len(self.hashes)

    @property
    def fps(self) -> NDArray[np.uint64]:
        """Fingerprints, uint64[n], ascending."""
        heads = np.ascontiguousarray(self.hashes[:, :8])
        return heads.view(">u8").reshape(-1).astype(np.uint64)

    def chunk_hashes(self) -> list[BlockHash]:
        """The full hashes, ascending."""
        joined = self.hashes.tobytes()
        return [BlockHash(joined[at : at + HASH_BYTES]) for at in range(0, len(joined), HASH_BYTES)]


def make_set(namespace: NamespaceId, name: str, blocks_of: Mapping[BlockHash, int]) -> PinSet:
    """A set of these chunks with their numbers of blocks (0: not known).

    Raises ValueError for a name that no set may have, too many chunks, a hash of another length or
    blocks outside 0..65535.
    """
    if not is_set_name(name):
        raise ValueError(f"not the name of a set: {name!r}")
    if len(blocks_of) > SET_CHUNKS_MAX:
        raise ValueError(f"{len(blocks_of)} chunks in a set, at most {SET_CHUNKS_MAX} are possible")
    ordered = sorted(blocks_of)
    if any(len(chunk_hash) != HASH_BYTES for chunk_hash in ordered):
        raise ValueError(f"a chunk hash has {HASH_BYTES} bytes")
    counts = [blocks_of[chunk_hash] for chunk_hash in ordered]
    if counts and not 0 <= min(counts) <= max(counts) < 1 << 16:
        raise ValueError("a number of blocks is outside 0..65535")
    hashes = np.frombuffer(b"".join(ordered), np.uint8).reshape(-1, HASH_BYTES)
    return PinSet(namespace, name, hashes, np.array(counts, np.uint16))


def encode_set(pinned: PinSet) -> bytes:
    """The one sequence of bytes for this content."""
    assert len(pinned) <= SET_CHUNKS_MAX, "too many chunks for one set"
    assert _is_ascending(pinned.hashes), "hashes must be sorted and unique"
    metadata = _metadata(pinned.namespace, pinned.name)
    return seal(metadata, _COLUMNS, (pinned.hashes, pinned.blocks))


def decode_set(data: bytes, namespace: NamespaceId, name: str) -> PinSet:
    """Check every byte of a set file.

    Raises `Corrupt` if the bytes are not what `encode_set` makes, `Mismatch` if they are of another
    format version or were made for another namespace or name. Both for any input whatever.
    """
    opened = open_file(data, SET_FORMAT, f"the pinned set {name}")
    stored_name = opened.fields.get("name", "").rstrip(" ")
    stored_namespace = NamespaceId(hex_field(opened, "namespace", 32))
    if not is_set_name(stored_name):
        raise Corrupt("no set has the name that stands in the file")
    metadata = _metadata(stored_namespace, stored_name)
    hashes, blocks = verified_columns(opened, metadata, _COLUMNS, SET_CHUNKS_MAX)
    if not _is_ascending(hashes):
        raise Corrupt("hashes are not sorted and unique")
    if stored_namespace != namespace:
        raise Mismatch("pinned set of another namespace")
    if stored_name != name:
        raise Mismatch(f"a set {name} by its name is {stored_name} inside")
    return PinSet(namespace, name, hashes, blocks)


def _metadata(namespace: NamespaceId, name: str) -> dict[str, str]:
    assert len(namespace) == 32
    return {"format": SET_FORMAT, "name": name.ljust(SET_NAME_MAX), "namespace": namespace}


def _is_ascending(hashes: NDArray[np.uint8]) -> bool:
    """Whether every hash is greater than the one before, all 32 bytes compared."""
    words = np.ascontiguousarray(hashes).view(">u8")
    left, right = words[:-1], words[1:]
    is_less = np.zeros(len(left), np.bool_)
    for column in reversed(range(words.shape[1])):
        equal = left[:, column] == right[:, column]
        is_less = (left[:, column] < right[:, column]) | (equal & is_less)
    return bool(is_less.all())
