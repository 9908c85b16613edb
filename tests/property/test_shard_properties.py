"""A shard that is accepted is the shard that was sealed, byte for byte and in every part."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load
from xxhash import xxh3_64_intdigest

from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import ZERO_HASH
from s3kv.core.shard import (
    ShardIdentity,
    read_header,
    seal,
    verify_blocks,
    verify_header,
)
from s3kv.errors import Corrupt, Mismatch
from tests.property.strategies import block_hashes, geometries, identities, namespace_ids


@st.composite
def sealed(draw: st.DrawFn) -> tuple[ShardGeometry, ShardIdentity, bytearray]:
    """A geometry, an identity that fits it, and the sealed shard's bytes."""
    geometry = draw(geometries())
    identity = draw(identities(geometry))
    body = bytearray(geometry.shard_bytes(identity.block_count))
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = len(body) - geometry.header_bytes
    body[geometry.header_bytes :] = noise.integers(0, 256, size, np.uint8).tobytes()
    seal(memoryview(body), geometry, identity, draw(st.binary(min_size=16, max_size=16)))
    return geometry, identity, body


Sealed = tuple[ShardGeometry, ShardIdentity, bytearray]


def accept(geometry: ShardGeometry, identity: ShardIdentity, body: bytearray) -> None:
    """What a reader of the whole shard does."""
    view = memoryview(body)
    header = verify_header(view[: geometry.header_bytes], geometry, identity)
    for group in range(len(geometry.groups)):
        start, length = geometry.group_range(group, identity.block_count, 0, identity.block_count)
        verify_blocks(header, geometry, group, 0, view[start : start + length])


def positions(geometry: ShardGeometry, body: bytearray) -> st.SearchStrategy[int]:
    """Every class of byte: length prefix, JSON, padding, data, and the edges between them."""
    json_end = body.rindex(b"}", 0, geometry.header_bytes) + 1
    edges = [0, 7, 8, json_end - 1, json_end, geometry.header_bytes - 1, geometry.header_bytes]
    return st.one_of(
        st.sampled_from([*edges, len(body) - 1]),
        st.integers(0, 7),
        st.integers(8, json_end - 1),
        st.integers(json_end, geometry.header_bytes - 1),
        st.integers(geometry.header_bytes, len(body) - 1),
    )


@settings(deadline=None)
@given(sealed())
def test_what_was_sealed_is_accepted(shard: Sealed) -> None:
    geometry, identity, body = shard

    accept(geometry, identity, body)

    found = read_header(bytes(body))
    assert found.identity == identity
    assert found.geometry.header_bytes == geometry.header_bytes


@settings(deadline=None, max_examples=400)
@given(sealed(), st.data(), st.integers(1, 255))
def test_any_flipped_byte_is_detected(shard: Sealed, data: st.DataObject, flip: int) -> None:
    geometry, identity, body = shard
    at = data.draw(positions(geometry, body))
    body[at] ^= flip

    with pytest.raises(Corrupt):
        accept(geometry, identity, body)


@settings(deadline=None)
@given(sealed(), st.data())
def test_a_cut_shard_is_refused(shard: Sealed, data: st.DataObject) -> None:
    geometry, identity, body = shard
    del body[data.draw(st.integers(0, len(body) - 1)) :]

    with pytest.raises(Corrupt):
        accept(geometry, identity, body)


@settings(deadline=None)
@given(sealed(), st.data())
def test_any_part_of_a_chunk_is_one_range_and_is_vouched_for_alone(
    shard: Sealed, data: st.DataObject
) -> None:
    geometry, identity, body = shard
    count = identity.block_count
    group = data.draw(st.integers(0, len(geometry.groups) - 1))
    first = data.draw(st.integers(0, count - 1))
    length = data.draw(st.integers(1, count - first))
    tensor = load(bytes(body))[f"g{group}"]
    start, size = geometry.group_range(group, count, first, length)
    part = memoryview(body)[start : start + size]
    header = verify_header(bytes(body), geometry, identity)

    assert bytes(part) == tensor[first : first + length].tobytes()
    verify_blocks(header, geometry, group, first, part)

    outside = [
        at for at in range(geometry.header_bytes, len(body)) if not start <= at < start + size
    ]
    for at in outside:
        body[at] ^= 0xFF
    verify_blocks(header, geometry, group, first, part)
    part[data.draw(st.integers(0, size - 1))] ^= 1
    with pytest.raises(Corrupt):
        verify_blocks(header, geometry, group, first, part)


@settings(deadline=None)
@given(geometries(max_groups=4), st.data())
def test_the_groups_ranges_tile_the_data_without_gap_or_overlap(
    geometry: ShardGeometry, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, geometry.chunk_blocks))
    at = geometry.header_bytes
    for group in range(len(geometry.groups)):
        for block in range(count):
            start, length = geometry.group_range(group, count, block, 1)
            assert start == at
            at += length

    assert at == geometry.shard_bytes(count)
    assert geometry.shard_bytes(geometry.chunk_blocks) == geometry.slot_bytes


@settings(deadline=None)
@given(sealed(), st.data())
def test_a_shard_of_another_identity_is_a_mismatch(shard: Sealed, data: st.DataObject) -> None:
    geometry, identity, body = shard
    field = data.draw(
        st.sampled_from(["namespace", "parent_hash", "block_hashes", "writer_index", "chunk"])
    )
    other = data.draw(block_hashes())
    if field == "namespace":
        expected = replace(identity, namespace=data.draw(namespace_ids()))
    elif field == "parent_hash":
        expected = replace(identity, parent_hash=other)
    elif field == "block_hashes":
        expected = replace(identity, block_hashes=(other, *identity.block_hashes))
    elif field == "chunk":
        expected = replace(
            identity, chunk_hash=other, block_hashes=(*identity.block_hashes[:-1], other)
        )
    else:
        assume(identity.writer_count < 999)
        expected = replace(identity, writer_index=identity.writer_count, writer_count=999)
    assume(expected != identity)
    # Where one side does not know the parent, it is not compared: test_shard_refusals has it.
    assume(field != "parent_hash" or ZERO_HASH not in (other, identity.parent_hash))

    with pytest.raises(Mismatch):
        verify_header(bytes(body), geometry, expected)


def forged(text: bytes) -> bytes:
    """A header around any JSON, with right length and, where it has a place for it, checksum."""
    size = -(-(8 + len(text)) // 4096) * 4096
    raw = struct.pack("<Q", size - 8) + text.ljust(size - 8)
    marker = b'"header_checksum":"'
    at = raw.find(marker)
    if at < 0:
        return raw
    at += len(marker)
    raw = raw[:at] + b"0" * 16 + raw[at + 16 :]
    return raw[:at] + b"%016x" % xxh3_64_intdigest(raw) + raw[at + 16 :]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(sealed(), st.data())
def test_a_forged_header_with_a_right_checksum_is_refused_or_is_what_it_says(
    shard: Sealed, data: st.DataObject
) -> None:
    geometry, _, body = shard
    document = json.loads(body[8 : geometry.header_bytes])
    metadata = document["__metadata__"]
    tensor = document["g0"]
    target = data.draw(st.sampled_from([document, metadata, tensor]))
    field = data.draw(st.sampled_from(sorted(target)))
    change = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if change == "remove":
        del target[field]
    else:
        target[field if change == "replace" else "more"] = data.draw(json_values)
    raw = forged(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())

    try:
        header = read_header(raw)
    except (Corrupt, Mismatch):
        return
    # Only a header whose meaning did not change may pass (a value replaced by its equal).
    assert raw == bytes(body[: geometry.header_bytes]), header


@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(0, 2**64 - 1))
def test_noise_is_corrupt_whatever_length_it_announces(noise: bytes, length: int) -> None:
    for head in (noise, struct.pack("<Q", length) + noise, forged(noise)):
        with pytest.raises(Corrupt):
            read_header(head)
