"""Index files: bytes of a segment, a tick or a run, and back.

An index file is a safetensors file: 8-byte little-endian header length, canonical JSON (sorted
keys, no spaces, padded with spaces so that the columns start at a multiple of 8), then the columns
of a `RecordSet` in the order fps, seen_s, blocks, flags. The header's fields are strings of
constant width. The checksum is XXH3-64 over all bytes, its own 16 digits read as zeros.

Equal content gives equal bytes: `decode` writes the header anew from what it understood and
compares, so nothing unexpected can hide in it, and maps the columns without a copy.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from s3kv.core.ids import NamespaceId
from s3kv.core.records import RECORDS_MAX, TIME_MAX_S, RecordSet
from s3kv.errors import Corrupt, Mismatch

FORMAT: Final = "s3kv-index/1"
RUN_RECORDS_MAX: Final = 1 << 26

_HEADER_MAX: Final = 4_096
_RECORD_BYTES: Final = 16
_NO_CHECKSUM: Final = "0" * 16
_COLUMNS: Final = (
    ("fps", "U64", "<u8", 8),
    ("seen_s", "U32", "<u4", 4),
    ("blocks", "U16", "<u2", 2),
    ("flags", "U16", "<u2", 2),
)
_UNSIGNED: Final = re.compile(r"[0-9]{10}")
_HEX: Final = re.compile(r"[0-9a-f]+")


class Kind(enum.Enum):
    """What an index file is; the value is its spelling in the header."""

    SEGMENT = "segment"
    TICK = "tick   "
    RUN = "run    "


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields of an index file.

    lo, hi: a segment's number twice, a tick's number twice, the ticks that a run covers; writer:
    16 bytes, the process that wrote it; watermark_s: chunks last used before are dead; interval_ms:
    advice, how often writers may commit; created_s: for people only; pause_bits: bit 0 loads, bit
    1 saves, unknown bits are passed on.
    """

    kind: Kind
    namespace: NamespaceId
    lo: int
    hi: int
    writer: bytes
    watermark_s: int
    interval_ms: int
    created_s: int
    pause_bits: int


def max_file_bytes(kind: Kind) -> int:
    """Largest size that a file of this kind may have."""
    records = RUN_RECORDS_MAX if kind is Kind.RUN else RECORDS_MAX
    return 8 + _HEADER_MAX + records * _RECORD_BYTES


def encode(header: Header, records: RecordSet) -> bytes:
    """The one sequence of bytes for this content."""
    limit = RUN_RECORDS_MAX if header.kind is Kind.RUN else RECORDS_MAX
    assert len(records) <= limit, "too many records for one file"
    assert _is_ascending(records), "records must be sorted and unique"
    head, checksum_at = _header_bytes(header, len(records))
    columns = [
        column.astype(dtype, copy=False).tobytes()
        for column, (_, _, dtype, _) in zip(_columns(records), _COLUMNS, strict=True)
    ]
    checksum = xxhash.xxh3_64(head)
    for column in columns:
        checksum.update(column)
    digits = checksum.hexdigest().encode()
    return b"".join((head[:checksum_at], digits, head[checksum_at + 16 :], *columns))


def decode(
    data: bytes, namespace: NamespaceId, kind: Kind, lo: int, hi: int
) -> tuple[Header, RecordSet]:
    """Check every byte of a file and map its columns.

    Raises `Corrupt` if the bytes are not what a writer made, `Mismatch` if they are of another
    format version or namespace, or are not the file that their name (kind, lo, hi) promises. Both
    for any input whatever.
    """
    text, fields = _read_fields(data)
    header = _parse_header(fields)
    start = 8 + len(text)
    count, rest = divmod(len(data) - start, _RECORD_BYTES)
    limit = RUN_RECORDS_MAX if header.kind is Kind.RUN else RECORDS_MAX
    if rest or count > limit:
        raise Corrupt(f"{len(data)} bytes are no whole number of records, or too many")
    head, checksum_at = _header_bytes(header, count)
    stored = fields.get("checksum", "")
    written = head[:checksum_at] + stored.encode("utf-8", "replace") + head[checksum_at + 16 :]
    if written != data[:start]:
        raise Corrupt("header is not canonical")
    checksum = xxhash.xxh3_64(head)
    checksum.update(memoryview(data)[start:])
    if checksum.hexdigest() != stored:
        raise Corrupt("checksum does not match")
    records = _map_columns(data, start, count)
    if not _is_ascending(records):
        raise Corrupt("records are not sorted and unique")
    _check_name(header, namespace, kind, lo, hi)
    return header, records


def _columns(
    records: RecordSet,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.unsignedinteger]], ...]:
    return records.fps, records.seen_s, records.blocks, records.flags


def _is_ascending(records: RecordSet) -> bool:
    return bool((records.fps[1:] > records.fps[:-1]).all())


def _map_columns(data: bytes, start: int, count: int) -> RecordSet:
    at = start
    columns = []
    for _, _, dtype, width in _COLUMNS:
        columns.append(np.frombuffer(data, dtype, count, at))
        at += width * count
    return RecordSet(*columns)


def _header_bytes(header: Header, count: int) -> tuple[bytes, int]:
    """Length and JSON with an empty checksum, and where the checksum's digits belong."""
    assert len(header.writer) == 16
    assert len(header.namespace) == 32
    document: dict[str, object] = {
        "__metadata__": {
            "checksum": _NO_CHECKSUM,
            "created_s": f"{header.created_s:010d}",
            "format": FORMAT,
            "hi": f"{header.hi:016x}",
            "interval_ms": f"{header.interval_ms:010d}",
            "kind": header.kind.value,
            "lo": f"{header.lo:016x}",
            "namespace": header.namespace,
            "pause": f"{header.pause_bits:08x}",
            "watermark_s": f"{header.watermark_s:010d}",
            "writer": header.writer.hex(),
        }
    }
    at = 0
    for name, dtype, _, width in _COLUMNS:
        end = at + width * count
        document[name] = {"data_offsets": [at, end], "dtype": dtype, "shape": [count]}
        at = end
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # Found by the key, not by its digits: another field may be all zeros too.
    marker = b'"checksum":"'
    return len(text).to_bytes(8, "little") + text, 8 + text.index(marker) + len(marker)


def _read_fields(data: bytes) -> tuple[bytes, dict[str, str]]:
    """The JSON text and its metadata, of a file in our format version."""
    if len(data) < 8:
        raise Corrupt("shorter than a header length")
    length = int.from_bytes(data[:8], "little")
    if length > _HEADER_MAX or len(data) < 8 + length:
        raise Corrupt(f"header length {length} in a file of {len(data)} bytes")
    text = data[8 : 8 + length]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt("header is not JSON") from error
    fields = document.get("__metadata__") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise Corrupt("header has no metadata")
    named = {str(key): value for key, value in fields.items() if isinstance(value, str)}
    if named.get("format") != FORMAT:
        raise Mismatch(f"index format {named.get('format')!r}; this build reads {FORMAT!r}")
    return text, named


def _parse_header(fields: dict[str, str]) -> Header:
    try:
        kind = Kind(fields.get("kind"))
    except ValueError as error:
        raise Corrupt(f"unknown kind {fields.get('kind')!r}") from error
    namespace = fields.get("namespace", "")
    if len(namespace) != 32 or not _HEX.fullmatch(namespace):
        raise Corrupt("namespace is not 32 hex digits")
    return Header(
        kind=kind,
        namespace=NamespaceId(namespace),
        lo=int(_hex(fields, "lo", 16), 16),
        hi=int(_hex(fields, "hi", 16), 16),
        writer=bytes.fromhex(_hex(fields, "writer", 32)),
        watermark_s=_decimal(fields, "watermark_s"),
        interval_ms=_decimal(fields, "interval_ms"),
        created_s=_decimal(fields, "created_s"),
        pause_bits=int(_hex(fields, "pause", 8), 16),
    )


def _hex(fields: dict[str, str], name: str, digits: int) -> str:
    text = fields.get(name, "")
    if len(text) != digits or not _HEX.fullmatch(text):
        raise Corrupt(f"{name} is not {digits} hex digits")
    return text


def _decimal(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not _UNSIGNED.fullmatch(text) or int(text) > TIME_MAX_S:
        raise Corrupt(f"{name} is not a 32-bit number")
    return int(text)


def _check_name(header: Header, namespace: NamespaceId, kind: Kind, lo: int, hi: int) -> None:
    if header.namespace != namespace:
        raise Mismatch("index file of another namespace")
    if (header.kind, header.lo, header.hi) != (kind, lo, hi):
        raise Mismatch(
            f"a {kind.value.strip()} {lo}..{hi} by its name is a "
            f"{header.kind.value.strip()} {header.lo}..{header.hi} inside"
        )
