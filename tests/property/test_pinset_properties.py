"""Pinned sets, for any content: round trip, canonical form, and no damage unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from s3kv.core.ids import BlockHash, NamespaceId, fingerprints
from s3kv.core.pinset import PinSet, decode_set, encode_set, make_set
from s3kv.errors import Corrupt, Mismatch
from tests.property.strategies import block_hashes, namespace_ids

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,99}", fullmatch=True)


@st.composite
def close_hashes(draw: st.DrawFn) -> BlockHash:
    """Hashes that differ in one byte only, wherever it stands: their order hangs on it."""
    raw = bytearray(32)
    raw[draw(st.integers(0, 31))] = draw(st.sampled_from([0, 1, 127, 128, 255]))
    return BlockHash(bytes(raw))


@st.composite
def pin_sets(draw: st.DrawFn) -> PinSet:
    chunks = st.dictionaries(block_hashes() | close_hashes(), st.integers(0, 65_535), max_size=12)
    return make_set(draw(namespace_ids()), draw(NAMES), draw(chunks))


def decode_as(data: bytes, pinned: PinSet) -> PinSet:
    return decode_set(data, pinned.namespace, pinned.name)


@given(pin_sets())
def test_what_was_encoded_is_decoded_and_encodes_to_the_same_bytes(pinned: PinSet) -> None:
    data = encode_set(pinned)

    got = decode_as(data, pinned)

    assert encode_set(got) == data
    assert (got.namespace, got.name) == (pinned.namespace, pinned.name)
    assert got.chunk_hashes() == pinned.chunk_hashes()
    tensors = load(data)
    assert (tensors["hashes"] == pinned.hashes).all()
    assert (tensors["blocks"] == pinned.blocks).all()


@given(pin_sets())
def test_fingerprints_are_those_of_the_hashes_and_ascend(pinned: PinSet) -> None:
    fps = pinned.fps

    assert fps.tolist() == fingerprints(pinned.chunk_hashes()).tolist() == sorted(fps.tolist())


@given(st.dictionaries(block_hashes() | close_hashes(), st.integers(0, 65_535), max_size=12))
def test_each_chunk_keeps_its_number_of_blocks(blocks_of: dict[BlockHash, int]) -> None:
    pinned = make_set(NamespaceId("0123456789abcdef" * 2), "hot", blocks_of)

    assert dict(zip(pinned.chunk_hashes(), pinned.blocks.tolist(), strict=True)) == blocks_of


@given(pin_sets(), st.data())
def test_any_changed_byte_is_noticed(pinned: PinSet, data: st.DataObject) -> None:
    file = bytearray(encode_set(pinned))
    at = data.draw(st.integers(0, len(file) - 1))
    file[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises((Corrupt, Mismatch)):
        decode_as(bytes(file), pinned)


@given(pin_sets(), st.data())
def test_a_file_that_is_cut_or_goes_on_is_noticed(pinned: PinSet, data: st.DataObject) -> None:
    file = encode_set(pinned)
    cut = file[: data.draw(st.integers(0, len(file) - 1))]
    longer = file + data.draw(st.binary(min_size=1, max_size=40))

    for damaged in (cut, longer):
        with pytest.raises((Corrupt, Mismatch)):
            decode_as(damaged, pinned)


@given(pin_sets(), namespace_ids(), NAMES)
def test_a_set_of_another_namespace_or_name_pins_nothing(
    pinned: PinSet, namespace: NamespaceId, name: str
) -> None:
    data = encode_set(pinned)
    for asked in ((namespace, pinned.name), (pinned.namespace, name)):
        if asked != (pinned.namespace, pinned.name):
            with pytest.raises(Mismatch):
                decode_set(data, *asked)


@given(pin_sets(), st.binary(max_size=200), st.data())
def test_hostile_bytes_raise_nothing_else(pinned: PinSet, junk: bytes, data: st.DataObject) -> None:
    json_like = st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=9), part),
        max_leaves=8,
    )
    text = repr(data.draw(json_like)).replace("'", '"').encode("utf-8", "surrogatepass")
    dressed = len(text).to_bytes(8, "little") + text + junk

    for hostile in (junk, dressed):
        with pytest.raises((Corrupt, Mismatch)):
            decode_as(hostile, pinned)
