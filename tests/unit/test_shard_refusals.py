"""Shards: another identity is a mismatch, any other bytes are corrupt."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from s3kv.core.geometry import MAX_HEADER_BYTES, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, NamespaceId
from s3kv.core.shard import (
    header_length,
    read_header,
    verify_blocks,
    verify_header,
)
from s3kv.errors import Corrupt, Mismatch
from tests.fakes.shards import MANY, ONE, TWO, hashes, identity_of, sealed

OTHER = BlockHash(b"o" * 32)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("namespace", {"namespace": NamespaceId("f" * 32)}),
        ("chunk_hash", {"chunk_hash": OTHER, "block_hashes": (*hashes(1), OTHER)}),
        ("block_hashes", {"block_hashes": (OTHER, *hashes(2)[1:])}),
        ("parent_hash", {"parent_hash": OTHER}),
        ("writer", {"writer_index": 2}),
        ("writers", {"writer_count": 7}),
    ],
)
def test_a_mismatch_names_the_field(field: str, change: dict[str, Any]) -> None:
    stored = replace(identity_of(2, 3, 8), parent_hash=BlockHash(b"p" * 32))
    head = sealed(TWO, stored)
    assert verify_header(head, TWO, stored).identity == stored

    with pytest.raises(Mismatch, match=rf"\b{field}\b"):
        verify_header(head, TWO, replace(stored, **change))


@pytest.mark.parametrize(
    ("field", "geometry"),
    [
        ("groups", ShardGeometry(TWO.groups[:1], 4)),
        ("groups", ShardGeometry(TWO.groups[::-1], 4)),
        ("chunk_blocks", ShardGeometry(TWO.groups, 3)),
    ],
)
def test_another_geometry_is_a_mismatch(field: str, geometry: ShardGeometry) -> None:
    head = sealed(TWO, identity_of(2))

    with pytest.raises(Mismatch, match=field):
        verify_header(head, geometry, identity_of(2))


def test_a_parent_hash_that_one_side_does_not_know_is_not_compared() -> None:
    unknown = identity_of(2)
    known = replace(unknown, parent_hash=OTHER)

    assert verify_header(sealed(ONE, known), ONE, unknown).identity.parent_hash == OTHER
    assert verify_header(sealed(ONE, unknown), ONE, known).identity.parent_hash == ZERO_HASH


def test_the_damaged_block_is_named_and_its_neighbours_pass() -> None:
    body = bytearray(sealed(TWO, identity_of(4)))
    header = verify_header(bytes(body), TWO, identity_of(4))
    start, length = TWO.group_range(1, 4, 0, 4)
    body[TWO.group_range(1, 4, 2, 1)[0]] ^= 1
    group = memoryview(body)[start : start + length]

    with pytest.raises(Corrupt, match="block 2 of group 1"):
        verify_blocks(header, TWO, 1, 0, group)
    verify_blocks(header, TWO, 1, 0, group[:30])
    verify_blocks(header, TWO, 1, 3, group[45:])


def test_swapped_blocks_are_detected() -> None:
    body = sealed(ONE, identity_of(2))
    header = verify_header(body, ONE, identity_of(2))
    first, second = body[ONE.header_bytes :][:48], body[ONE.header_bytes :][48:]

    with pytest.raises(Corrupt, match="block 0"):
        verify_blocks(header, ONE, 0, 0, memoryview(second + first))


def test_lengths_that_are_not_whole_blocks_of_this_chunk_are_corrupt() -> None:
    body = memoryview(sealed(ONE, identity_of(3)))
    header = verify_header(body, ONE, identity_of(3))
    data = body[ONE.header_bytes :]

    for wrong in (data[:0], data[:-1], memoryview(bytes(data) + bytes(48))):
        with pytest.raises(Corrupt, match="blocks have 48 bytes each"):
            verify_blocks(header, ONE, 0, 0, wrong)
    with pytest.raises(Corrupt):
        verify_blocks(header, ONE, 0, 1, data)
    for group, first in [(1, 0), (-1, 0), (0, 3), (0, -1)]:
        with pytest.raises(ValueError, match="no block"):
            verify_blocks(header, ONE, group, first, data)


def resealed(head: bytes, old: str, new: str) -> bytes:
    """A header with one text exchanged (padding adjusted) and a right checksum."""
    text = head[8:].decode("ascii").rstrip(" ").replace(old, new, 1)
    assert old in head.decode("latin-1")
    raw = head[:8] + text.encode("ascii").ljust(len(head) - 8)
    at = raw.index(b'"header_checksum":"') + 19
    raw = raw[:at] + b"0" * 16 + raw[at + 16 :]
    return raw[:at] + b"%016x" % xxh3_64_intdigest(raw) + raw[at + 16 :]


HEAD = sealed(ONE, identity_of(2))[: ONE.header_bytes]


def test_exchanging_nothing_leaves_a_header_that_is_accepted() -> None:
    assert resealed(HEAD, "s3kv/1", "s3kv/1") == HEAD
    read_header(HEAD)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [("s3kv/1", "s3kv/2", "format 's3kv/2'"), ('"none    "', '"planes1 "', "codec 'planes1 '")],
)
def test_intact_headers_of_an_unknown_format_or_codec_are_a_mismatch(
    old: str, new: str, problem: str
) -> None:
    with pytest.raises(Mismatch, match=problem):
        read_header(resealed(HEAD, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"writer":"000"', '"writer":"+00"'),
        ('"writer":"000"', '"writer":"0"'),
        ('"writers":"001"', '"writers":"000"'),
        ('"dtype":"U8"', '"dtype":"I8"'),
        ('"shape":[2,2,24]', '"shape":[2,2,25]'),
        ('"shape":[2,2,24]', '"shape":[3,2,24]'),
        ('"shape":[2,2,24]', '"shape":[5,2,24]'),
        ('"shape":[2,2,24]', '"shape":[2,0,24]'),
        ('"shape":[2,2,24]', '"shape":[true,2,24]'),
        ('"shape":[2,2,24]', '"shape":[2,48]'),
        ('"shape":[2,2,24]', '"shape":[2,2,1e3]'),
        ('"shape":[2,2,24]', '"shape":[2,2,99999999999999999999]'),
        ('"data_offsets":[0,96]', '"data_offsets":[0,97]'),
        ('"data_offsets":[0,96]', '"data_offsets":[0, 96]'),
        ('"g0":', '"g1":'),
        ('"g0":', '"more":1,"g0":'),
        ('"frames":"0', '"frames":"1'),
        ('"nonce":"00', '"nonce":"'),
        ('"nonce":"00', '"nonce":"AA'),
        ('"checksums":"', '"checksums":"00'),
        ('"block_hashes":"', '"block_hashes":"00'),
        ('"namespace":"01', '"namespace":"/1'),
        ('"parent_hash":"00', '"parent_hash":"zz'),
        ('"parent_hash":"00', '"parent_hash":"'),
        ('"chunk_hash":"', '"more":"","chunk_hash":"'),
        ('"codec":"none    ",', ""),
        ('"codec":"none    "', '"codec":7'),
        ('{"__metadata__":', '{"__metadata__":{},"__metadata__":'),
        ('{"__metadata__"', '[{"__metadata__"'),
        ('"g0":', f'"g0":{"[" * 1500}'),
    ],
)
def test_headers_that_no_writer_would_write_are_corrupt_in_spite_of_their_checksum(
    old: str, new: str
) -> None:
    with pytest.raises(Corrupt):
        read_header(resealed(HEAD, old, new))


def test_nesting_beyond_the_interpreters_limit_is_corrupt() -> None:
    size = (1 << 20) - 8
    text = b'{"header_checksum":"0000000000000000","a":' + b"[" * (size - 100)
    raw = struct.pack("<Q", size) + text.ljust(size)
    raw = raw.replace(b"0" * 16, b"%016x" % xxh3_64_intdigest(raw), 1)

    with pytest.raises(Corrupt, match="not JSON"):
        read_header(raw)


def test_other_files_are_corrupt() -> None:
    foreign = b'{"__metadata__":{},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    for head in (
        b"",
        b"1234567",
        struct.pack("<Q", 2**63) + bytes(4096),
        struct.pack("<Q", MAX_HEADER_BYTES - 8 + 4096) + bytes(MAX_HEADER_BYTES + 4096),
        struct.pack("<Q", len(foreign)) + foreign,
        struct.pack("<Q", 4088) + foreign.ljust(4088),
        struct.pack("<Q", 4088) + b'"header_checksum":"'.rjust(4088),
        bytes(4096),
    ):
        with pytest.raises(Corrupt):
            read_header(head)


def test_an_announced_length_beyond_any_header_is_refused_before_memory_is_asked_for() -> None:
    assert header_length(struct.pack("<Q", MAX_HEADER_BYTES - 8)) == MAX_HEADER_BYTES
    for total in (MAX_HEADER_BYTES + 4096, MAX_HEADER_BYTES - 1, 1 << 62):
        with pytest.raises(Corrupt, match=f"no shard has a header of {total} bytes"):
            header_length(struct.pack("<Q", total - 8))


def test_a_tool_learns_the_headers_length_from_its_first_bytes() -> None:
    head = sealed(MANY, identity_of(1))

    assert header_length(head[:8]) == MANY.header_bytes
    with pytest.raises(Corrupt, match="4096 bytes of a shard header"):
        read_header(sealed(ShardGeometry(ONE.groups, 40), identity_of(40))[:4096])
    assert [(g.layer_count, g.page_bytes) for g in read_header(head).geometry.groups] == [
        (g.layer_count, g.page_bytes) for g in MANY.groups
    ]
