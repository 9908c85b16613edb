"""Names of things that must not be mixed up, and the one way from a block hash to a fingerprint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

import numpy as np
from numpy.typing import NDArray

BlockHash = NewType("BlockHash", bytes)
"""Chained hash of a block (32 bytes): names the whole prefix up to the block's end."""

NamespaceId = NewType("NamespaceId", str)
"""First 32 hex digits of the SHA-256 over the namespace's canonical JSON."""

HASH_BYTES = 32
ZERO_HASH = BlockHash(bytes(HASH_BYTES))


def fingerprint(chunk_hash: bytes) -> int:
    """First 8 bytes of a chunk hash as an unsigned big-endian integer (INDEX format)."""
    return int.from_bytes(chunk_hash[:8], "big")


def fingerprints(chunk_hashes: Sequence[bytes]) -> NDArray[np.uint64]:
    """Fingerprints of many hashes, in order. Returns uint64[len(chunk_hashes)]."""
    joined = b"".join(h[:8] for h in chunk_hashes)
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64)
