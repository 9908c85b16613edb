"""Index files: golden bytes, the safetensors library's view, and what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors import safe_open
from safetensors.numpy import load

from s3kv.core.ids import NamespaceId
from s3kv.core.indexfile import Header, Kind, decode, encode, max_file_bytes
from s3kv.core.records import DEAD, EMPTY, RECORDS_MAX, RecordSet, make_records
from s3kv.errors import Corrupt, Mismatch
from tests.fakes.index_store import NS, make_header

GOLDEN = Path(__file__).parent / "golden"

HEADER = make_header(
    Kind.TICK,
    0x1A2B,
    writer=bytes(range(16)),
    watermark_s=1_700_000_000,
    interval_ms=1_500,
    created_s=1_800_000_123,
    pause_bits=2,
)
RECORDS = make_records(
    [2**64 - 1, 0x0123456789ABCDEF, 5], [1_800_000_000, 1_800_000_001, 2**32 - 1], [16, 3, 65_535]
)


def resealed(data: bytes) -> bytes:
    """The file with a checksum that fits its bytes: what a skilled forger would make."""
    found = re.search(rb'"checksum": ?"', data)
    assert found is not None
    at = found.end()
    blank = data[:at] + b"0" * 16 + data[at + 16 :]
    digits = xxhash.xxh3_64(blank).hexdigest().encode()
    return data[:at] + digits + data[at + 16 :]


def refile(header_json: bytes, columns: bytes = b"") -> bytes:
    text = header_json + b" " * (-len(header_json) % 8)
    return len(text).to_bytes(8, "little") + text + columns


def decode_tick(data: bytes, number: int = 0x1A2B) -> tuple[Header, RecordSet]:
    return decode(data, NS, Kind.TICK, number, number)


@pytest.mark.parametrize(
    ("name", "header", "records"),
    [
        ("index_tick.bin", HEADER, RECORDS),
        ("index_segment.bin", make_header(Kind.SEGMENT, 7), make_records([9], 11, 16, DEAD)),
        ("index_run.bin", make_header(Kind.RUN, 1, 600, pause_bits=1), EMPTY),
    ],
)
def test_bytes_are_those_of_the_golden_files(name: str, header: Header, records: RecordSet) -> None:
    path = GOLDEN / name
    if os.environ.get("S3KV_WRITE_GOLDEN"):
        path.write_bytes(encode(header, records))

    assert encode(header, records) == path.read_bytes()
    assert decode(path.read_bytes(), NS, header.kind, header.lo, header.hi)[0] == header


def test_a_file_can_be_read_with_the_safetensors_library(tmp_path: Path) -> None:
    data = encode(HEADER, RECORDS)
    path = tmp_path / "tick.safetensors"
    path.write_bytes(data)

    tensors = load(data)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()

    assert (tensors["fps"] == RECORDS.fps).all()
    assert (tensors["seen_s"] == RECORDS.seen_s).all()
    assert (tensors["blocks"] == RECORDS.blocks).all()
    assert (tensors["flags"] == RECORDS.flags).all()
    assert tensors["fps"].dtype == np.uint64
    assert metadata["kind"] == "tick   "
    assert int(metadata["lo"], 16) == 0x1A2B
    assert int(metadata["watermark_s"]) == 1_700_000_000


def test_a_file_without_records_can_be_read_with_the_library() -> None:
    assert {name: len(column) for name, column in load(encode(HEADER, EMPTY)).items()} == {
        "fps": 0,
        "seen_s": 0,
        "blocks": 0,
        "flags": 0,
    }


def test_columns_are_mapped_at_aligned_offsets_without_a_copy() -> None:
    data = encode(HEADER, RECORDS)

    _, records = decode_tick(data)

    start = int.from_bytes(data[:8], "little") + 8
    assert start % 8 == 0
    for column in (records.fps, records.seen_s, records.blocks, records.flags):
        assert not column.flags.owndata
        assert not column.flags.writeable
        assert column.flags.aligned


def test_a_checksum_of_another_algorithm_or_seed_is_not_accepted() -> None:
    data = encode(HEADER, RECORDS)
    at = data.index(b'"checksum":"') + len(b'"checksum":"')

    with pytest.raises(Corrupt, match="checksum"):
        decode_tick(data[:at] + b"0123456789abcdef" + data[at + 16 :])


def test_another_version_is_politely_refused_whatever_else_it_changed() -> None:
    newer = refile(b'{"__metadata__":{"format":"s3kv-index/2","novel":"field"}}', b"anything")

    with pytest.raises(Mismatch, match="s3kv-index/2"):
        decode_tick(newer)


def test_unknown_flag_and_pause_bits_are_ignored_and_kept() -> None:
    header = make_header(Kind.TICK, 1, pause_bits=0xFFFF_FFF0)

    got_header, got = decode(encode(header, make_records([1], 10, 16, 0xFFFE)), NS, Kind.TICK, 1, 1)

    assert got_header.pause_bits == 0xFFFF_FFF0
    assert got.flags.tolist() == [0xFFFE]
    assert got.live(0).tolist() == [True]


@pytest.mark.parametrize(
    ("kind", "lo", "hi", "namespace"),
    [
        (Kind.SEGMENT, 0x1A2B, 0x1A2B, NS),
        (Kind.TICK, 1, 1, NS),
        (Kind.RUN, 0x1A2B, 0x1A2B, NS),
        (Kind.TICK, 0x1A2B, 0x1A2B, NamespaceId("f" * 32)),
    ],
)
def test_a_file_that_is_not_what_its_name_promises_is_refused(
    kind: Kind, lo: int, hi: int, namespace: NamespaceId
) -> None:
    with pytest.raises(Mismatch):
        decode(encode(HEADER, RECORDS), namespace, kind, lo, hi)


def test_records_out_of_order_are_refused_although_the_checksum_fits() -> None:
    data = encode(HEADER, RECORDS)
    start = int.from_bytes(data[:8], "little") + 8
    first, second = data[start : start + 8], data[start + 8 : start + 16]

    swapped = resealed(data[:start] + second + first + data[start + 16 :])
    repeated = resealed(data[:start] + first + first + data[start + 16 :])

    for forged in (swapped, repeated):
        with pytest.raises(Corrupt, match="sorted"):
            decode_tick(forged)


def test_headers_that_say_the_same_in_other_words_are_refused() -> None:
    data = encode(HEADER, RECORDS)
    size = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + size])
    columns = data[8 + size :]
    wordy = json.dumps(document, sort_keys=True).encode()
    document["__metadata__"]["extra"] = "x"
    extended = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    for text in (wordy, extended):
        for forged in (refile(text, columns), resealed(refile(text, columns))):
            with pytest.raises(Corrupt):
                decode_tick(forged)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 64,
        (2**40).to_bytes(8, "little") + b"{}",
        refile(b"[" * 4_000),
        refile(b"not json"),
        refile(b"[]"),
        refile(b"{}"),
        refile(b'{"__metadata__":7}'),
        refile(b'{"__metadata__":{"format":"s3kv-index/1"}}'),
        refile(
            b'{"__metadata__":{"format":"s3kv-index/1","kind":"tick   ","namespace":"\\ud800"}}'
        ),
    ],
    ids=range(11),
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((Corrupt, Mismatch)):
        decode_tick(data)


def test_more_records_than_a_tick_may_hold_are_refused_and_a_run_may_hold_them() -> None:
    many = make_records(np.arange(RECORDS_MAX + 1, dtype=np.uint64), 1, 16)
    run = encode(make_header(Kind.RUN, 1, 2), many)
    forged = resealed(run.replace(b'"run    "', b'"tick   "'))

    assert len(decode(run, NS, Kind.RUN, 1, 2)[1]) == RECORDS_MAX + 1
    with pytest.raises(Corrupt, match="too many"):
        decode(forged, NS, Kind.TICK, 1, 2)
    with pytest.raises(AssertionError):
        encode(HEADER, many)


def test_the_largest_files_stay_below_the_bound_for_reading() -> None:
    full = make_records(np.arange(RECORDS_MAX, dtype=np.uint64), 1, 16)

    assert len(encode(HEADER, full)) <= max_file_bytes(Kind.TICK) < 2**21
