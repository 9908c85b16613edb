"""Intact files of a format version that this build does not know."""

from __future__ import annotations

from xxhash import xxh3_64_hexdigest

from s3kv.core.indexfile import FORMAT
from s3kv.core.shard_header import SHARD_FORMAT


def as_newer(file: bytes, format_name: str = FORMAT) -> bytes:
    """A file of columns of the next version, its checksum right."""
    return renamed(file, format_name, _next(format_name))


def as_newer_shard(shard: bytes, header_bytes: int) -> bytes:
    """A shard of the next version; the checksum of a shard's header covers the header."""
    head, field = shard[:header_bytes], b'"header_checksum":"'
    return renamed(head, SHARD_FORMAT, _next(SHARD_FORMAT), field) + shard[header_bytes:]


def renamed(data: bytes, old: str, new: str, checksum_field: bytes = b'"checksum":"') -> bytes:
    """The same under another format name of the same length, its checksum right."""
    assert data.count(f'"{old}"'.encode()) == 1
    assert len(old) == len(new)
    data = data.replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    at = data.index(checksum_field) + len(checksum_field)
    zeroed = data[:at] + b"0" * 16 + data[at + 16 :]
    return data[:at] + xxh3_64_hexdigest(zeroed).encode() + data[at + 16 :]


def _next(format_name: str) -> str:
    name, _, number = format_name.rpartition("/")
    return f"{name}/{int(number) + 1}"
