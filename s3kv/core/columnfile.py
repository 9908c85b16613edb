"""Files of a few columns: canonical safetensors whose header vouches for every byte.

Rule upheld here: equal content gives equal bytes. A file is an 8-byte little-endian header length,
canonical JSON (sorted keys, no spaces, padded with spaces so that the columns start at a multiple
of 8), then the columns in their fixed order. The metadata are strings of constant width; one of
them, `checksum`, is XXH3-64 over all bytes with its own 16 digits read as zeros. A reader writes
the header anew from what it understood and compares, so nothing unexpected can hide in it.

The places of the length, of `format` and of `checksum`, and the rule of the latter, are the same in
every version of a format: so an intact file of a newer version is told from a damaged one.

What the metadata and the rows mean is decided by `indexfile` and `pinset`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from s3kv.errors import Corrupt, Mismatch, NewerFormat

HEADER_MAX_BYTES: Final = 4_096

_NO_CHECKSUM: Final = "0" * 16
_HEX: Final = re.compile(r"[0-9a-f]+")
_CHECKSUM_FIELD: Final = b'"checksum":"'


@dataclass(frozen=True, slots=True)
class Column:
    """name, safetensors_dtype, dtype (numpy, little-endian); row: shape of one row."""

    name: str
    safetensors_dtype: str
    dtype: str
    row: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * prod(self.row)


@dataclass(frozen=True, slots=True)
class Opened:
    """A file whose header could be read: where its columns start, and its metadata, unverified."""

    data: bytes
    start: int
    fields: Mapping[str, str]


def seal(
    metadata: Mapping[str, str], columns: Sequence[Column], values: Sequence[NDArray[Any]]
) -> bytes:
    """The one sequence of bytes for this content; metadata without `checksum`."""
    head, checksum_at = _header_bytes(metadata, columns, len(values[0]))
    bodies = [
        value.astype(column.dtype, copy=False).tobytes()
        for value, column in zip(values, columns, strict=True)
    ]
    checksum = xxhash.xxh3_64(head)
    for body in bodies:
        checksum.update(body)
    digits = checksum.hexdigest().encode()
    return b"".join((head[:checksum_at], digits, head[checksum_at + 16 :], *bodies))


def open_file(data: bytes, format_name: str, what: str) -> Opened:
    """Read the metadata. what: the file in words.

    Raises `Corrupt`, `NewerFormat` for an intact file of another version of this format, `Mismatch`
    for any other format.
    """
    if len(data) < 8:
        raise Corrupt("shorter than a header length")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_MAX_BYTES or len(data) < 8 + length:
        raise Corrupt(f"header length {length} in a file of {len(data)} bytes")
    try:
        document = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise Corrupt("header is not JSON") from error
    fields = document.get("__metadata__") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise Corrupt("header has no metadata")
    named = {str(key): value for key, value in fields.items() if isinstance(value, str)}
    found = named.get("format", "")
    if found != format_name:
        if is_other_version(found, format_name) and _is_intact(data, 8 + length):
            raise NewerFormat(what, found, format_name)
        raise Mismatch(f"file format {found!r:.40}; this build reads {format_name!r}")
    return Opened(data, 8 + length, named)


def verified_columns(
    opened: Opened, metadata: Mapping[str, str], columns: Sequence[Column], rows_max: int
) -> list[NDArray[Any]]:
    """Check every byte, and map the columns without a copy.

    metadata: what the file's own metadata were understood to say, spelt canonically. Raises
    `Corrupt`.
    """
    data, start = opened.data, opened.start
    count, rest = divmod(len(data) - start, sum(column.row_bytes for column in columns))
    if rest or count > rows_max:
        raise Corrupt(f"{len(data)} bytes are no whole number of records, or too many")
    head, checksum_at = _header_bytes(metadata, columns, count)
    stored = opened.fields.get("checksum", "")
    written = head[:checksum_at] + stored.encode("utf-8", "replace") + head[checksum_at + 16 :]
    if written != data[:start]:
        raise Corrupt("header is not canonical")
    checksum = xxhash.xxh3_64(head)
    checksum.update(memoryview(data)[start:])
    if checksum.hexdigest() != stored:
        raise Corrupt("checksum does not match")
    mapped, at = [], start
    for column in columns:
        flat = np.frombuffer(data, column.dtype, count * prod(column.row), at)
        mapped.append(flat.reshape(count, *column.row))
        at += count * column.row_bytes
    return mapped


def hex_field(opened: Opened, name: str, digits: int) -> str:
    """A field of so many lower-case hex digits. Raises `Corrupt`."""
    text = opened.fields.get(name, "")
    if len(text) != digits or not _HEX.fullmatch(text):
        raise Corrupt(f"{name} is not {digits} hex digits")
    return text


def is_other_version(found: str, known: str) -> bool:
    """Whether two format names, `name/number`, differ in their number only."""
    name, _, number = found.rpartition("/")
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    return is_number and name == known.rpartition("/")[0] and found != known


def _is_intact(data: bytes, end: int) -> bool:
    """Whether the checksum in the header (data[:end]) is that of the file, whatever its version."""
    at = data.find(_CHECKSUM_FIELD, 8, end) + len(_CHECKSUM_FIELD)
    if at < len(_CHECKSUM_FIELD) or at + 16 > end:
        return False
    checksum = xxhash.xxh3_64(data[:at] + _NO_CHECKSUM.encode() + data[at + 16 : end])
    checksum.update(memoryview(data)[end:])
    return checksum.hexdigest().encode() == data[at : at + 16]


def _header_bytes(
    metadata: Mapping[str, str], columns: Sequence[Column], count: int
) -> tuple[bytes, int]:
    """Length and JSON with an empty checksum, and where the checksum's digits belong."""
    document: dict[str, object] = {"__metadata__": {"checksum": _NO_CHECKSUM, **metadata}}
    at = 0
    for column in columns:
        end = at + column.row_bytes * count
        document[column.name] = {
            "data_offsets": [at, end],
            "dtype": column.safetensors_dtype,
            "shape": [count, *column.row],
        }
        at = end
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # Found by the key, not by its digits: another field may be all zeros too.
    checksum_at = 8 + text.index(_CHECKSUM_FIELD) + len(_CHECKSUM_FIELD)
    return len(text).to_bytes(8, "little") + text, checksum_at
