"""Object names, relative to the prefix of the configured URI, and the way back.

Rule upheld here: `*_key` and `parse_*_key` are inverses. A name that is not exactly what `*_key`
writes (another case, a missing zero, a wrong fan-out digit, something after it) is foreign and
parses to None: a listing may contain anything, and nothing foreign is ever read or deleted.

    {ns}/NAMESPACE.json
    {ns}/data/{first 2 hex}/{chunk hash, 64 hex}/{writer:03d}of{writers:03d}.safetensors
    {ns}/idx/inbox/{writer id, 32 hex}-{seq:08x}
    {ns}/idx/tick/{n:016x}
    {ns}/idx/run/{lo:016x}-{hi:016x}
    {ns}/sets/{name}
    {ns}/quarantine/{first 2 hex}/{chunk hash, 64 hex}/{writer:03d}of{writers:03d}.safetensors
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from s3kv.core.ids import HASH_BYTES, BlockHash, NamespaceId

MAX_WRITERS: Final = 999
SET_NAME_MAX: Final = 100
WRITER_ID_BYTES: Final = 16

_NAMESPACE_PATTERN: Final = re.compile(r"[0-9a-f]{32}")
_SHARD_PATTERN: Final = re.compile(
    r"([0-9a-f]{32})/(data|quarantine)/([0-9a-f]{2})/(\3[0-9a-f]{62})/"
    r"([0-9]{3})of([0-9]{3})\.safetensors"
)
_FAN_OUT_PATTERN: Final = re.compile(r"[0-9a-f]{2}")
_SET_NAME_PATTERN: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{SET_NAME_MAX - 1}}}")
_SEGMENT_PATTERN: Final = re.compile(r"([0-9a-f]{32})/idx/inbox/([0-9a-f]{32})-([0-9a-f]{8})")
_TICK_PATTERN: Final = re.compile(r"([0-9a-f]{32})/idx/tick/([0-9a-f]{16})")
_RUN_PATTERN: Final = re.compile(r"([0-9a-f]{32})/idx/run/([0-9a-f]{16})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class ShardName:
    """One writer's bytes of one chunk: writer_index of writer_count (replicas removed)."""

    namespace: NamespaceId
    chunk_hash: BlockHash
    writer_index: int
    writer_count: int


@dataclass(frozen=True, slots=True)
class SetName:
    """A pinned set, by the name that people gave it."""

    namespace: NamespaceId
    name: str


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The seq-th commit of the writer process with this random 16-byte id."""

    namespace: NamespaceId
    writer: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class TickName:
    """Tick n, counted from 1."""

    namespace: NamespaceId
    tick: int


@dataclass(frozen=True, slots=True)
class RunName:
    """A run covering the ticks lo..hi, both included."""

    namespace: NamespaceId
    lo: int
    hi: int


def check_namespace_id(ns: NamespaceId) -> NamespaceId:
    """The id unchanged. Raises ValueError unless it is 32 lower-case hex digits.

    Every name begins with it: an empty or odd one would lead out of the namespace.
    """
    if _NAMESPACE_PATTERN.fullmatch(ns) is None:
        raise ValueError(f"not a namespace id (32 lower-case hex digits): {ns!r}")
    return ns


def namespace_key(ns: NamespaceId) -> str:
    """Where the namespace's fields are written down."""
    return f"{check_namespace_id(ns)}/NAMESPACE.json"


def data_prefix(ns: NamespaceId, fan_out: str = "") -> str:
    """Common prefix of all shards, or of those whose hash begins with these two hex digits.

    Raises ValueError for another fan_out.
    """
    return f"{check_namespace_id(ns)}/data/{_folder(fan_out)}"


def quarantine_prefix(ns: NamespaceId) -> str:
    """Common prefix of all shards that were found wrong and set aside."""
    return f"{check_namespace_id(ns)}/quarantine/"


def sets_prefix(ns: NamespaceId) -> str:
    """Common prefix of all pinned sets."""
    return f"{check_namespace_id(ns)}/sets/"


def inbox_prefix(ns: NamespaceId) -> str:
    """Common prefix of all segments."""
    return f"{check_namespace_id(ns)}/idx/inbox/"


def tick_prefix(ns: NamespaceId) -> str:
    """Common prefix of all ticks."""
    return f"{check_namespace_id(ns)}/idx/tick/"


def run_prefix(ns: NamespaceId) -> str:
    """Common prefix of all runs."""
    return f"{check_namespace_id(ns)}/idx/run/"


def shard_key(ns: NamespaceId, chunk_hash: bytes, writer_index: int, writer_count: int) -> str:
    """Name of a shard. Raises ValueError unless 0 <= writer_index < writer_count <= 999."""
    return data_prefix(ns) + _shard_name(chunk_hash, writer_index, writer_count)


def parse_shard_key(key: str) -> ShardName | None:
    """The inverse of `shard_key`; None for foreign names."""
    return _parse_shard(key, "data")


def quarantine_key(ns: NamespaceId, chunk_hash: bytes, writer_index: int, writer_count: int) -> str:
    """Where a shard that was found wrong is kept for people to look at. Raises as `shard_key`."""
    return quarantine_prefix(ns) + _shard_name(chunk_hash, writer_index, writer_count)


def parse_quarantine_key(key: str) -> ShardName | None:
    """The inverse of `quarantine_key`; None for foreign names."""
    return _parse_shard(key, "quarantine")


def is_set_name(name: str) -> bool:
    """Whether a pinned set may have this name: a-z, 0-9, and after the first also . _ and -."""
    return _SET_NAME_PATTERN.fullmatch(name) is not None


def set_key(ns: NamespaceId, name: str) -> str:
    """Name of a pinned set. Raises ValueError unless `is_set_name`."""
    if not is_set_name(name):
        raise ValueError(f"not the name of a set (a-z, 0-9, then also . _ -): {name!r}")
    return sets_prefix(ns) + name


def parse_set_key(key: str) -> SetName | None:
    """The inverse of `set_key`; None for foreign names."""
    ns, _, name = key.partition("/sets/")
    if _NAMESPACE_PATTERN.fullmatch(ns) is None or not is_set_name(name):
        return None
    return SetName(NamespaceId(ns), name)


def segment_key(ns: NamespaceId, writer: bytes, seq: int) -> str:
    """Name of a segment. Raises ValueError unless writer has 16 bytes and 0 <= seq < 2**32."""
    if len(writer) != WRITER_ID_BYTES:
        raise ValueError(f"a writer id has {WRITER_ID_BYTES} bytes, not {len(writer)}")
    return f"{inbox_prefix(ns)}{writer.hex()}-{_number(seq, 0, 8)}"


def parse_segment_key(key: str) -> SegmentName | None:
    """The inverse of `segment_key`; None for foreign names."""
    found = _SEGMENT_PATTERN.fullmatch(key)
    if found is None:
        return None
    return SegmentName(NamespaceId(found[1]), bytes.fromhex(found[2]), int(found[3], 16))


def tick_key(ns: NamespaceId, tick: int) -> str:
    """Name of a tick. Raises ValueError unless 1 <= tick < 2**64."""
    return tick_prefix(ns) + _number(tick, 1, 16)


def parse_tick_key(key: str) -> TickName | None:
    """The inverse of `tick_key`; None for foreign names."""
    found = _TICK_PATTERN.fullmatch(key)
    if found is None or int(found[2], 16) < 1:
        return None
    return TickName(NamespaceId(found[1]), int(found[2], 16))


def run_key(ns: NamespaceId, lo: int, hi: int) -> str:
    """Name of the run over ticks lo..hi. Raises ValueError unless 1 <= lo <= hi < 2**64."""
    if lo > hi:
        raise ValueError(f"no ticks {lo}..{hi}")
    return f"{run_prefix(ns)}{_number(lo, 1, 16)}-{_number(hi, 1, 16)}"


def parse_run_key(key: str) -> RunName | None:
    """The inverse of `run_key`; None for foreign names."""
    found = _RUN_PATTERN.fullmatch(key)
    if found is None:
        return None
    lo, hi = int(found[2], 16), int(found[3], 16)
    return RunName(NamespaceId(found[1]), lo, hi) if 1 <= lo <= hi else None


def _folder(fan_out: str) -> str:
    if not fan_out:
        return ""
    if _FAN_OUT_PATTERN.fullmatch(fan_out) is None:
        raise ValueError(f"not two lower-case hex digits: {fan_out!r}")
    return f"{fan_out}/"


def _shard_name(chunk_hash: bytes, writer_index: int, writer_count: int) -> str:
    if len(chunk_hash) != HASH_BYTES:
        raise ValueError(f"a chunk hash has {HASH_BYTES} bytes, not {len(chunk_hash)}")
    if not 0 <= writer_index < writer_count <= MAX_WRITERS:
        raise ValueError(f"writer {writer_index} of {writer_count} (at most {MAX_WRITERS})")
    name = chunk_hash.hex()
    return f"{name[:2]}/{name}/{writer_index:03d}of{writer_count:03d}.safetensors"


def _parse_shard(key: str, kind: str) -> ShardName | None:
    found = _SHARD_PATTERN.fullmatch(key)
    if found is None or found[2] != kind:
        return None
    ns, _, _, chunk_hash, index, count = found.groups()
    if int(index) >= int(count):
        return None
    return ShardName(NamespaceId(ns), BlockHash(bytes.fromhex(chunk_hash)), int(index), int(count))


def _number(value: int, least: int, digits: int) -> str:
    if not least <= value < 16**digits:
        raise ValueError(f"{value} is not in {least}..16**{digits}-1")
    return f"{value:0{digits}x}"
