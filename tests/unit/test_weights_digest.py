"""Weights digests: what they depend on and what they do not."""

from __future__ import annotations

import hashlib
import json
import os
from io import BufferedReader
from pathlib import Path

import pytest

from s3kv.core.weights import (
    WINDOW_BYTES,
    Unidentified,
    plan_tensor_windows,
)
from s3kv.runtime.weight_files import weights_digest
from tests.fakes.weight_folders import Mode, digest, flip, header_of, model_in, with_header


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_equal_files_elsewhere_have_equal_digests(tmp_path: Path, mode: Mode) -> None:
    model_in(tmp_path / "here")
    copy = model_in(tmp_path / "there")
    os.utime(copy, (1, 1))
    (tmp_path / "there" / "config.json").write_text('{"architectures": ["Other"]}')

    here, there = digest(tmp_path / "here", mode), digest(tmp_path / "there", mode)

    assert here == there
    kind, _, hexdigits = here.partition(":")
    assert kind == mode
    assert len(bytes.fromhex(hexdigits)) == 32


def test_every_tensor_has_a_window_inside_it(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    header, size = header_of(path)

    plan = plan_tensor_windows(header, size)

    spans = {n: v["data_offsets"] for n, v in json.loads(header).items() if n != "__metadata__"}
    start_of_data = 8 + len(header)
    for begin, end in spans.values():
        inside = [
            (start, length)
            for start, length in plan.windows
            if start_of_data + begin <= start and start + length <= start_of_data + end
        ]
        assert len(inside) == (1 if begin < end else 0)
        assert all(length == min(WINDOW_BYTES, end - begin) for _, length in inside)


def test_windows_do_not_all_lie_at_the_start_of_their_tensors() -> None:
    size = 1 << 20
    entries = {
        f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(20)
    }
    header = json.dumps(entries).encode()

    plan = plan_tensor_windows(header, 8 + len(header) + 20 * size)

    offsets = {(start - 8 - len(header)) % size for start, _ in plan.windows}
    assert len(offsets) == 20
    assert max(offsets) > size // 2


def test_a_window_never_leaves_its_tensor_however_little_room_it_has() -> None:
    size = WINDOW_BYTES + 1
    names = sorted(f"t{i}" for i in range(40))
    header = json.dumps(
        {
            name: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
            for i, name in enumerate(names)
        }
    ).encode()

    plan = plan_tensor_windows(header, 8 + len(header) + 40 * size)

    offsets = [s - 8 - len(header) - i * size for i, (s, _) in enumerate(plan.windows)]
    assert set(offsets) == {0, 1}


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_in(tmp_path)
    read_whole = hashlib.file_digest

    def grow_meanwhile(file: BufferedReader, name: str) -> object:
        found = read_whole(file, name)
        path.write_bytes(path.read_bytes() + b"more")
        return found

    monkeypatch.setattr(hashlib, "file_digest", grow_meanwhile)

    found = weights_digest(tmp_path, "full")

    assert isinstance(found, Unidentified)
    assert "changed" in found.reason


def test_one_changed_byte_in_any_window_changes_the_digest(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    before = digest(tmp_path)
    plan = plan_tensor_windows(*header_of(path))

    for start, length in plan.windows:
        for at in (start, start + length // 2, start + length - 1):
            flip(path, at)
            assert digest(tmp_path) != before
            flip(path, at)

    assert digest(tmp_path) == before


def test_a_byte_outside_all_windows_is_the_named_risk_of_auto_and_none_of_full(
    tmp_path: Path,
) -> None:
    path = model_in(tmp_path)
    header, size = header_of(path)
    windows = plan_tensor_windows(header, size).windows
    covered = {at for start, length in windows for at in range(start, start + length)}
    outside = next(at for at in range(8 + len(header), size) if at not in covered)
    auto, full = digest(tmp_path), digest(tmp_path, "full")

    flip(path, outside)

    assert digest(tmp_path) == auto
    assert digest(tmp_path, "full") != full


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "BF16"},
        {"shape": [128, 16]},
        {"data_offsets": [0, 4]},
    ],
)
def test_a_tensors_dtype_shape_or_offsets_change_the_digest(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = model_in(tmp_path)
    with_header(path, {})
    before = digest(tmp_path)
    entry = json.loads(header_of(path)[0])["model.layers.0.weight"]
    model_in(tmp_path)

    with_header(path, {"model.layers.0.weight": entry | change})

    assert digest(tmp_path) != before


def test_a_renamed_tensor_changes_the_digest(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    with_header(path, {})
    before = digest(tmp_path)
    entry = json.loads(header_of(path)[0])["model.norm.weight"]
    model_in(tmp_path)

    with_header(path, {"model.norm.weight": None, "model.norm2.weight": entry})

    assert digest(tmp_path) != before


def test_metadata_of_the_file_does_not_change_the_digest(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    with_header(path, {})
    before = digest(tmp_path)
    model_in(tmp_path)

    with_header(path, {"__metadata__": {"format": "np", "a": "b"}})

    assert digest(tmp_path) == before


def test_names_and_number_of_files_change_the_digest(tmp_path: Path) -> None:
    model_in(tmp_path / "a")
    model_in(tmp_path / "b", "other.safetensors")
    model_in(tmp_path / "c")
    model_in(tmp_path / "c", "second.safetensors")
    model_in(tmp_path / "d" / "sub")

    assert len({digest(tmp_path / name) for name in "abcd"}) == 4
