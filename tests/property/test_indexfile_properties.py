"""Index files, for any content: round trip, canonical form, and no damage unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from s3kv.core.ids import NamespaceId
from s3kv.core.indexfile import Header, Kind, decode, encode
from s3kv.core.records import RecordSet, make_records
from s3kv.errors import Corrupt, Mismatch
from tests.property.strategies import namespace_ids

U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1


@st.composite
def record_sets(draw: st.DrawFn) -> RecordSet:
    count = draw(st.integers(0, 20))
    column = st.lists(st.integers(0, U64), min_size=count, max_size=count)
    fps, seen_s, blocks, flags = (draw(column) for _ in range(4))
    return make_records(
        fps, [s & U32 for s in seen_s], [b & U16 for b in blocks], [f & U16 for f in flags]
    )


@st.composite
def headers(draw: st.DrawFn) -> Header:
    number, small = st.integers(0, U64), st.integers(0, U32)
    return Header(
        kind=draw(st.sampled_from(Kind)),
        namespace=draw(namespace_ids()),
        lo=draw(number),
        hi=draw(number),
        writer=draw(st.binary(min_size=16, max_size=16)),
        watermark_s=draw(small),
        interval_ms=draw(small),
        created_s=draw(small),
        pause_bits=draw(small),
    )


def decode_as(data: bytes, header: Header) -> tuple[Header, RecordSet]:
    return decode(data, header.namespace, header.kind, header.lo, header.hi)


@given(headers(), record_sets())
def test_what_was_encoded_is_decoded_and_encodes_to_the_same_bytes(
    header: Header, records: RecordSet
) -> None:
    data = encode(header, records)

    got_header, got = decode_as(data, header)

    assert got_header == header
    assert encode(got_header, got) == data
    tensors = load(data)
    for name in ("fps", "seen_s", "blocks", "flags"):
        assert (tensors[name] == getattr(records, name)).all()
        assert (getattr(got, name) == getattr(records, name)).all()


@given(headers(), record_sets(), st.data())
def test_any_changed_byte_is_noticed(
    header: Header, records: RecordSet, data: st.DataObject
) -> None:
    file = bytearray(encode(header, records))
    at = data.draw(st.integers(0, len(file) - 1))
    file[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises((Corrupt, Mismatch)):
        decode_as(bytes(file), header)


@given(headers(), record_sets(), st.data())
def test_a_file_that_is_cut_or_goes_on_is_noticed(
    header: Header, records: RecordSet, data: st.DataObject
) -> None:
    file = encode(header, records)
    cut = file[: data.draw(st.integers(0, len(file) - 1))]
    longer = file + data.draw(st.binary(min_size=1, max_size=40))

    for damaged in (cut, longer):
        with pytest.raises((Corrupt, Mismatch)):
            decode_as(damaged, header)


@given(headers(), st.binary(max_size=200), st.data())
def test_hostile_bytes_raise_nothing_else(header: Header, junk: bytes, data: st.DataObject) -> None:
    json_like = st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=9), part),
        max_leaves=8,
    )
    text = repr(data.draw(json_like)).replace("'", '"').encode("utf-8", "surrogatepass")
    dressed = len(text).to_bytes(8, "little") + text + junk

    for hostile in (junk, dressed):
        with pytest.raises((Corrupt, Mismatch)):
            decode_as(hostile, header)


def test_every_single_byte_of_a_file_is_covered() -> None:
    header = Header(
        kind=Kind.SEGMENT,
        namespace=NamespaceId("0123456789abcdef" * 2),
        lo=1,
        hi=1,
        writer=b"w" * 16,
        watermark_s=1,
        interval_ms=1,
        created_s=1,
        pause_bits=0,
    )
    file = encode(header, make_records([1, 2], 3, 4))

    for at in range(len(file)):
        for bit in range(8):
            damaged = bytearray(file)
            damaged[at] ^= 1 << bit
            with pytest.raises((Corrupt, Mismatch)):
                decode_as(bytes(damaged), header)
