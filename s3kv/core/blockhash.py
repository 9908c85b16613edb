"""The engine's block hashes of a prompt, derived without an engine.

Rule upheld here: for a text prompt these are the bytes that vLLM's prefix cache computes, golden-
tested against it. Each full block of `hash_block_size` tokens is named by the SHA-256 over the
serialised triple (parent's hash, token ids, extra keys); the first block's parent is the hash of
a seed, and a request's cache salt is an extra key of the first block, hence in all that follow.
Serialised means canonical CBOR for `sha256_cbor` and pickle for `sha256`. Adapters and images add
extra keys too; prompts with them are not derived here.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from s3kv.core.ids import BlockHash
from s3kv.core.namespace import Refused, check_hash_algorithm

DEFAULT_SEED: Final = "vllm-none-hash"
"""Where the first block's parent comes from unless PYTHONHASHSEED is set in the engine's
environment: then that is the seed."""

ExtraKeys: TypeAlias = tuple[tuple[str, str], ...] | None

_PICKLE_PROTOCOL: Final = 5
"""The highest one of every Python version so far, which is the one that engines use."""

_UINT, _BYTES, _TEXT, _ARRAY = 0, 2, 3, 4
_NULL: Final = b"\xf6"


def root_hash(algorithm: str, seed: str = DEFAULT_SEED) -> BlockHash:
    """Parent of every first block. Raises ValueError for an algorithm that is refused, by name."""
    return _digest(_serialiser_of(algorithm)[0](seed))


def block_hashes(
    algorithm: str,
    token_ids: Sequence[int],
    hash_block_size: int,
    *,
    salt: str = "",
    seed: str = DEFAULT_SEED,
) -> list[BlockHash]:
    """Hashes of all full blocks of a prompt, in order.

    token_ids: without negative ones; hash_block_size: tokens per hash; salt: the request's
    `cache_salt`, empty for none. Raises ValueError for an algorithm that is refused, by name, a
    negative token id, or a hash_block_size below 1.
    """
    if hash_block_size < 1:
        raise ValueError(f"blocks of {hash_block_size} tokens")
    if token_ids and min(token_ids) < 0:
        raise ValueError("a token id is negative")
    serialised = _serialiser_of(algorithm)[1]
    parent, extra = root_hash(algorithm, seed), _salted(salt)
    chain: list[BlockHash] = []
    for end in range(hash_block_size, len(token_ids) + 1, hash_block_size):
        block = tuple(token_ids[end - hash_block_size : end])
        parent = _digest(serialised(parent, block, extra))
        chain.append(parent)
        extra = None
    return chain


def _salted(salt: str) -> ExtraKeys:
    return (("cache_salt", salt),) if salt else None


def _digest(content: bytes) -> BlockHash:
    return BlockHash(hashlib.sha256(content).digest())


_Block: TypeAlias = Callable[[bytes, tuple[int, ...], ExtraKeys], bytes]


def _serialiser_of(algorithm: str) -> tuple[Callable[[str], bytes], _Block]:
    """How a seed and how a block become bytes."""
    checked = check_hash_algorithm(algorithm)
    if isinstance(checked, Refused):
        raise ValueError(checked.reason)  # noqa: TRY004 (a value that names no such algorithm)
    return (_cbor_text, _cbor_block) if checked == "sha256_cbor" else (_pickled, _pickled_block)


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=_PICKLE_PROTOCOL)


def _pickled_block(parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys) -> bytes:
    return _pickled((parent, tokens, extra))


def _cbor_block(parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys) -> bytes:
    parts = [_head(_ARRAY, 3), _head(_BYTES, len(parent)), parent, _head(_ARRAY, len(tokens))]
    parts += [_head(_UINT, token) for token in tokens]
    if extra is None:
        parts.append(_NULL)
    else:
        parts.append(_head(_ARRAY, len(extra)))
        for key in extra:
            parts += [_head(_ARRAY, len(key)), *map(_cbor_text, key)]
    return b"".join(parts)


def _cbor_text(text: str) -> bytes:
    content = text.encode("utf-8")
    return _head(_TEXT, len(content)) + content


def _head(major: int, value: int) -> bytes:
    """Major type and argument in the shortest form, as canonical CBOR wants it."""
    kind = major << 5
    if value < 24:
        return bytes((kind | value,))
    if value < 1 << 8:
        return bytes((kind | 24, value))
    if value < 1 << 16:
        return struct.pack(">BH", kind | 25, value)
    if value < 1 << 32:
        return struct.pack(">BI", kind | 26, value)
    return struct.pack(">BQ", kind | 27, value)
