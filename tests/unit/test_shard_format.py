"""Shards: the golden bytes, the safetensors library as a reader, and sealing in place."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load
from xxhash import xxh3_64_intdigest

from s3kv.core.geometry import MAX_HEADER_BYTES, GroupGeometry, ShardGeometry
from s3kv.core.ids import ZERO_HASH, BlockHash, NamespaceId
from s3kv.core.shard import (
    ShardHeader,
    ShardIdentity,
    header_length,
    read_header,
    seal,
    verify_blocks,
    verify_header,
)
from s3kv.core.shard_header import encode_header
from tests.fakes.shards import MANY, NONCE, ONE, TWO, hashes, identity_of, pattern, sealed

GOLDEN = json.loads((Path(__file__).parent / "golden" / "shards.json").read_text())


@pytest.mark.parametrize("vector", GOLDEN, ids=[vector["name"] for vector in GOLDEN])
def test_shard_bytes_are_those_of_the_golden_vectors(vector: dict[str, Any]) -> None:
    groups = tuple(GroupGeometry("", *shape) for shape in vector["groups"])
    geometry = ShardGeometry(groups, vector["chunk_blocks"])
    identity = ShardIdentity(
        NamespaceId(vector["namespace"]),
        BlockHash(bytes.fromhex(vector["block_hashes"][-1])),
        BlockHash(bytes.fromhex(vector["parent_hash"])),
        tuple(BlockHash(bytes.fromhex(h)) for h in vector["block_hashes"]),
        vector["writer"],
        vector["writers"],
    )

    body = sealed(geometry, identity)

    assert body[8 : geometry.header_bytes].decode("ascii").rstrip(" ") == vector["header"]
    assert (geometry.header_bytes, len(body)) == (vector["header_bytes"], vector["shard_bytes"])
    assert hashlib.sha256(body).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("geometry", [ONE, TWO, MANY], ids=["one", "two", "eleven"])
@pytest.mark.parametrize("block_count", [1, 3])
def test_the_safetensors_library_reads_the_same_bytes(
    tmp_path: Path, geometry: ShardGeometry, block_count: int
) -> None:
    body = sealed(geometry, identity_of(block_count, 3, 8))
    path = tmp_path / "003of008.safetensors"
    path.write_bytes(body)

    tensors = load(body)

    assert set(tensors) == {f"g{i}" for i in range(len(geometry.groups))}
    for index, group in enumerate(geometry.groups):
        tensor = tensors[f"g{index}"]
        start, length = geometry.group_range(index, block_count, 0, block_count)
        assert tensor.dtype == np.uint8
        assert tensor.shape == (block_count, group.layer_count, group.page_bytes)
        assert tensor.tobytes() == body[start : start + length]
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        assert metadata["chunk_hash"] == hashes(block_count)[-1].hex()
        assert (metadata["writer"], metadata["writers"]) == ("003", "008")
        assert file.get_tensor("g0").tobytes() == tensors["g0"].tobytes()


def test_the_metadata_holds_the_checksum_of_every_block_that_the_library_reads(
    tmp_path: Path,
) -> None:
    path = tmp_path / "000of001.safetensors"
    path.write_bytes(sealed(TWO, identity_of(3)))

    with safe_open(path, framework="np") as file:
        written = file.metadata()["checksums"]
        expected = ""
        for name in ("g0", "g1"):
            for block in file.get_tensor(name):
                expected += f"{xxh3_64_intdigest(block.tobytes()):016x}"
            expected += "0" * 16

    assert written == expected


def test_headers_of_full_and_tail_chunks_have_one_length() -> None:
    for geometry in (ONE, TWO, MANY):
        lengths = {
            header_length(sealed(geometry, identity_of(count)))
            for count in range(1, geometry.chunk_blocks + 1)
        }
        assert lengths == {geometry.header_bytes}
        assert geometry.header_bytes % 4096 == 0


def test_the_largest_header_fits_into_its_formula() -> None:
    groups = (GroupGeometry("g", 1, (1 << 40) // (64 * 4096) - 100),) * 64
    geometry = ShardGeometry(groups, 4096)
    identity = identity_of(4096, 998, 999)

    raw = encode_header(ShardHeader(identity, geometry, NONCE, ((2**64 - 1,) * 4096,) * 64))

    assert len(raw) == geometry.header_bytes == MAX_HEADER_BYTES
    assert read_header(raw).identity == identity


def test_sealing_writes_in_place_and_touches_nothing_behind_the_shard() -> None:
    slot = bytearray(pattern(TWO.slot_bytes))
    before = bytes(slot)

    body = seal(memoryview(slot), TWO, identity_of(2), NONCE)

    end = TWO.shard_bytes(2)
    assert body.obj is slot
    assert len(body) == end
    assert slot[TWO.header_bytes :] == before[TWO.header_bytes :]
    verify_header(bytes(slot), TWO, identity_of(2))


def test_sealing_and_verifying_copy_no_data() -> None:
    geometry = ShardGeometry((GroupGeometry("big", 1, 1 << 20),), 8)
    slot = memoryview(bytearray(geometry.slot_bytes))
    identity = identity_of(8)

    tracemalloc.start()
    try:
        seal(slot, geometry, identity, NONCE)
        header = verify_header(slot, geometry, identity)
        verify_blocks(header, geometry, 0, 0, slot[geometry.header_bytes :])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 18


def test_a_different_nonce_changes_the_file_but_not_its_meaning() -> None:
    slot = memoryview(bytearray(ONE.slot_bytes))
    first = bytes(seal(slot, ONE, identity_of(4), b"1" * 16))
    second = bytes(seal(slot, ONE, identity_of(4), b"2" * 16))

    assert first != second
    assert read_header(first).identity == read_header(second).identity


def test_a_slot_that_cannot_take_the_shard_is_refused() -> None:
    slot = memoryview(bytearray(ONE.slot_bytes))
    with pytest.raises(ValueError, match="cannot hold"):
        seal(slot[:-1], ONE, identity_of(4), NONCE)
    with pytest.raises(ValueError, match="cannot hold"):
        seal(slot.toreadonly(), ONE, identity_of(4), NONCE)
    with pytest.raises(ValueError, match="contiguous"):
        seal(slot[::2], ONE, identity_of(1), NONCE)
    with pytest.raises(ValueError, match="nonce"):
        seal(slot, ONE, identity_of(4), b"short")
    with pytest.raises(ValueError, match="5 blocks"):
        seal(slot, ONE, identity_of(5), NONCE)


def test_contradictory_identities_cannot_be_made() -> None:
    good = identity_of(2, 3, 8)
    for change, problem in [
        ({"chunk_hash": ZERO_HASH}, "last block"),
        ({"block_hashes": ()}, "last block"),
        ({"parent_hash": BlockHash(b"short")}, "32 bytes"),
        ({"writer_index": 8}, "writer 8 of 8"),
        ({"writer_count": 1000}, "writer 3 of 1000"),
        ({"namespace": NamespaceId("../../../../../../../../../../../")}, "namespace id"),
    ]:
        with pytest.raises(ValueError, match=problem):
            replace(good, **change)  # type: ignore[arg-type]
