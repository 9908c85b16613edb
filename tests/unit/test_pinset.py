"""Pinned sets: golden bytes, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import xxhash

from s3kv.core.ids import BlockHash
from s3kv.core.pinset import (
    SET_BYTES_MAX,
    SET_CHUNKS_MAX,
    PinSet,
    decode_set,
    encode_set,
    make_set,
)
from s3kv.errors import Corrupt, Mismatch
from tests.fakes.index_store import NS

GOLDEN = Path(__file__).parent / "golden" / "pinset.bin"
HASHES = [BlockHash(bytes([first]) + bytes(range(31))) for first in (7, 9, 254)]
SET = make_set(NS, "system-prompts.v2", dict(zip(HASHES, (16, 0, 3), strict=True)))


def resealed(data: bytes) -> bytes:
    """The file with a checksum that fits its bytes: what a skilled forger would make."""
    found = re.search(rb'"checksum":"', data)
    assert found is not None
    at = found.end()
    digits = xxhash.xxh3_64(data[:at] + b"0" * 16 + data[at + 16 :]).hexdigest().encode()
    return data[:at] + digits + data[at + 16 :]


def decode(data: bytes) -> PinSet:
    return decode_set(data, NS, "system-prompts.v2")


def test_bytes_are_those_of_the_golden_file() -> None:
    if os.environ.get("S3KV_WRITE_GOLDEN"):
        GOLDEN.write_bytes(encode_set(SET))

    assert encode_set(SET) == GOLDEN.read_bytes()
    assert decode(GOLDEN.read_bytes()).chunk_hashes() == HASHES


def test_sets_with_names_of_any_length_have_headers_of_one_length() -> None:
    lengths = {len(encode_set(make_set(NS, name, {}))) for name in ("a", "b" * 100)}

    assert len(lengths) == 1


def test_another_version_is_politely_refused() -> None:
    text = b'{"__metadata__":{"format":"s3kv-set/2","novel":"field"}}'

    with pytest.raises(Mismatch, match="s3kv-set/2"):
        decode(len(text).to_bytes(8, "little") + text)


def test_hashes_out_of_order_are_refused_although_the_checksum_fits() -> None:
    data = encode_set(SET)
    start = int.from_bytes(data[:8], "little") + 8
    first, second = data[start : start + 32], data[start + 32 : start + 64]

    swapped = resealed(data[:start] + second + first + data[start + 64 :])
    repeated = resealed(data[:start] + first + first + data[start + 64 :])

    for forged in (swapped, repeated):
        with pytest.raises(Corrupt, match="sorted"):
            decode(forged)


def test_hashes_that_differ_in_their_last_byte_only_have_their_order() -> None:
    low, high = (BlockHash(b"x" * 31 + bytes([last])) for last in (0, 255))
    data = encode_set(make_set(NS, "system-prompts.v2", {high: 1, low: 1}))
    start = int.from_bytes(data[:8], "little") + 8
    swapped = data[:start] + high + low + data[start + 64 :]

    assert decode(data).chunk_hashes() == [low, high]
    with pytest.raises(Corrupt, match="sorted"):
        decode(resealed(swapped))


def test_a_name_inside_that_no_set_has_is_refused_although_the_checksum_fits() -> None:
    forged = resealed(encode_set(SET).replace(b'"system-prompts.v2', b'"../tem-prompts.v2'))

    with pytest.raises(Corrupt, match="name"):
        decode(forged)


@pytest.mark.parametrize("name", ["", "A", ".hidden", "a/b", "a b", "a" * 101, "ä", "a\n"])
def test_names_that_no_set_may_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        make_set(NS, name, {})


def test_hashes_and_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_set(NS, "a", {BlockHash(b"short"): 1})
    for blocks in (-1, 65_536):
        with pytest.raises(ValueError, match="blocks"):
            make_set(NS, "a", {HASHES[0]: blocks})


def test_the_largest_set_stays_below_the_bound_for_reading_and_a_larger_one_is_refused() -> None:
    hashes = (BlockHash(number.to_bytes(32, "big")) for number in range(SET_CHUNKS_MAX + 1))
    blocks_of = dict.fromkeys(hashes, 16)

    with pytest.raises(ValueError, match="at most"):
        make_set(NS, "a", blocks_of)
    blocks_of.popitem()
    assert len(encode_set(make_set(NS, "a", blocks_of))) <= SET_BYTES_MAX < 2**26
