"""Index files: bytes of a segment, a tick or a run, and back.

An index file is a `columnfile` with the columns of a `RecordSet` in the order fps, seen_s, blocks,
flags. Equal content gives equal bytes; `decode` checks every one and maps the columns without a
copy.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from s3kv.core.columnfile import (
    HEADER_MAX_BYTES,
    Column,
    Opened,
    hex_field,
    open_file,
    seal,
    verified_columns,
)
from s3kv.core.ids import NamespaceId
from s3kv.core.records import RECORDS_MAX, TIME_MAX_S, RecordSet
from s3kv.errors import Corrupt, Mismatch, NewerFormat

FORMAT: Final = "s3kv-index/1"
RUN_RECORDS_MAX: Final = 1 << 26

_COLUMNS: Final = (
    Column("fps", "U64", "<u8"),
    Column("seen_s", "U32", "<u4"),
    Column("blocks", "U16", "<u2"),
    Column("flags", "U16", "<u2"),
)
_RECORD_BYTES: Final = sum(column.row_bytes for column in _COLUMNS)
_UNSIGNED: Final = re.compile(r"[0-9]{10}")


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


IndexFile: TypeAlias = tuple[Header, RecordSet]
FileName: TypeAlias = tuple[Kind, int, int]
"""Kind, lo and hi, as a file's name promises them."""


def max_file_bytes(kind: Kind) -> int:
    """Largest size that a file of this kind may have."""
    return 8 + HEADER_MAX_BYTES + _records_max(kind) * _RECORD_BYTES


def encode(header: Header, records: RecordSet) -> bytes:
    """The one sequence of bytes for this content."""
    assert len(records) <= _records_max(header.kind), "too many records for one file"
    assert _is_ascending(records), "records must be sorted and unique"
    values = (records.fps, records.seen_s, records.blocks, records.flags)
    return seal(_metadata(header), _COLUMNS, values)


def decode(
    data: bytes, namespace: NamespaceId, kind: Kind, lo: int, hi: int
) -> tuple[Header, RecordSet]:
    """Check every byte of a file and map its columns.

    Raises `Corrupt` if the bytes are not what a writer made, `NewerFormat` if they are of
    another version, `Mismatch` if of another format or namespace, or not the file that their name
    (kind, lo, hi) promises. These for any input whatever.
    """
    opened = open_file(data, FORMAT, f"the {kind.value.strip()} {lo:x}..{hi:x}")
    header = _parse_header(opened)
    columns = verified_columns(opened, _metadata(header), _COLUMNS, _records_max(header.kind))
    records = RecordSet(*columns)
    if not _is_ascending(records):
        raise Corrupt("records are not sorted and unique")
    _check_name(header, namespace, kind, lo, hi)
    return header, records


def decode_all(
    namespace: NamespaceId, bodies: Sequence[bytes | None], names: Sequence[FileName]
) -> list[IndexFile | None]:
    """Decode each body as what its name promises; None where it is None or cannot be read.

    Raises `NewerFormat` for any file of a newer version.
    """
    files: list[IndexFile | None] = []
    for body, name in zip(bodies, names, strict=True):
        try:
            files.append(None if body is None else decode(body, namespace, *name))
        except NewerFormat:
            raise
        except (Corrupt, Mismatch):
            files.append(None)
    return files


def _records_max(kind: Kind) -> int:
    return RUN_RECORDS_MAX if kind is Kind.RUN else RECORDS_MAX


def _is_ascending(records: RecordSet) -> bool:
    return bool((records.fps[1:] > records.fps[:-1]).all())


def _metadata(header: Header) -> dict[str, str]:
    assert len(header.writer) == 16
    assert len(header.namespace) == 32
    return {
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


def _parse_header(opened: Opened) -> Header:
    kind_text = opened.fields.get("kind")
    try:
        kind = Kind(kind_text)
    except ValueError as error:
        raise Corrupt(f"unknown kind {kind_text!r}") from error
    return Header(
        kind=kind,
        namespace=NamespaceId(hex_field(opened, "namespace", 32)),
        lo=int(hex_field(opened, "lo", 16), 16),
        hi=int(hex_field(opened, "hi", 16), 16),
        writer=bytes.fromhex(hex_field(opened, "writer", 32)),
        watermark_s=_decimal(opened, "watermark_s"),
        interval_ms=_decimal(opened, "interval_ms"),
        created_s=_decimal(opened, "created_s"),
        pause_bits=int(hex_field(opened, "pause", 8), 16),
    )


def _decimal(opened: Opened, name: str) -> int:
    text = opened.fields.get(name, "")
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
