"""Weights digests: which files count, how each is read, and when there is no digest."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from s3kv.core.weights import (
    SPREAD_WINDOWS,
    WINDOW_BYTES,
    FileEvidence,
    Unidentified,
    digest_files,
    plan_spread_windows,
    plan_tensor_windows,
)
from s3kv.errors import Corrupt
from s3kv.runtime.weight_files import weights_digest
from tests.fakes.weight_folders import digest, flip, model_in, tensors


def hub_cache(root: Path, content_name: str) -> Path:
    """A snapshot folder as the Hugging Face cache lays it out: links into blobs/."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "commit"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_file(tensors(), blobs / content_name)
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs") / content_name)
    return snapshot


def test_a_cache_blob_is_known_by_its_name_without_being_read(tmp_path: Path) -> None:
    one, two = hub_cache(tmp_path / "1", "a" * 64), hub_cache(tmp_path / "2", "b" * 64)
    same = hub_cache(tmp_path / "3", "a" * 64)
    blob = tmp_path / "3" / "blobs" / ("a" * 64)
    blob.write_bytes(bytes(blob.stat().st_size))

    assert digest(one) != digest(two)
    assert digest(one) == digest(same)
    assert digest(one, "full") != digest(same, "full")


def test_a_cut_cache_blob_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path, "a" * 64)
    before = digest(snapshot)
    blob = tmp_path / "blobs" / ("a" * 64)

    blob.write_bytes(blob.read_bytes()[:-1])

    assert digest(snapshot) != before


@pytest.mark.parametrize("name", ["c" * 40, "A" * 64, "a" * 63 + "g"])
def test_a_blob_without_a_sha256_name_is_read(tmp_path: Path, name: str) -> None:
    snapshot = hub_cache(tmp_path, name)
    model_in(tmp_path / "plain")
    save_file(tensors(), tmp_path / "plain" / "model.safetensors")

    assert digest(snapshot) == digest(tmp_path / "plain")


def test_a_link_to_a_hash_named_file_outside_a_blobs_folder_is_read(tmp_path: Path) -> None:
    target = tmp_path / "files" / ("a" * 64)
    target.parent.mkdir()
    save_file(tensors(), target)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(target)
    before = digest(tmp_path / "model")

    flip(target, target.stat().st_size - 1)

    assert digest(tmp_path / "model") != before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model-q4.gguf"])
def test_files_without_a_tensor_table_are_sampled_at_both_ends_and_between(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    size = (SPREAD_WINDOWS + 3) * WINDOW_BYTES * 4
    path.write_bytes(bytes(size))
    before = digest(tmp_path)
    plan = plan_spread_windows(name, size)
    assert (plan.windows[0], plan.windows[-1][0]) == ((0, WINDOW_BYTES), size - WINDOW_BYTES)
    assert len(plan.windows) == SPREAD_WINDOWS + 2

    for at in (0, size - 1, plan.windows[5][0], plan.windows[40][0] + WINDOW_BYTES - 1):
        flip(path, at)
        assert digest(tmp_path) != before
        flip(path, at)
    path.write_bytes(bytes(size + 1))
    assert digest(tmp_path) != before


def test_small_files_without_a_tensor_table_are_read_whole() -> None:
    size = (SPREAD_WINDOWS + 2) * WINDOW_BYTES

    assert plan_spread_windows("a.bin", size).windows == ((0, size),)
    assert plan_spread_windows("a.bin", 0).windows == ()
    windows = plan_spread_windows("a.bin", size + 1).windows
    assert all(0 <= start <= size + 1 - length for start, length in windows)


def test_other_formats_count_only_where_there_are_no_safetensors(tmp_path: Path) -> None:
    model_in(tmp_path)
    before = digest(tmp_path)

    (tmp_path / "training_args.bin").write_bytes(b"x")

    assert digest(tmp_path) == before


def test_hidden_folders_are_left_out(tmp_path: Path) -> None:
    model_in(tmp_path)
    before = digest(tmp_path)

    model_in(tmp_path / ".cache" / "download")

    assert digest(tmp_path) == before


def test_a_single_file_is_identified_with_its_other_parts(tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    for path in (first, second, tmp_path / "m.gguf", tmp_path / "m-q8.gguf"):
        path.write_bytes(b"GGUF")
    parts, single = digest(first), digest(tmp_path / "m.gguf")

    second.write_bytes(b"gguf")
    (tmp_path / "m-q8.gguf").write_bytes(b"gguf")

    assert digest(first) != parts
    assert digest(tmp_path / "m.gguf") == single


def bad_header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        bytes(64),
        struct.pack("<Q", 2**63) + b"{}",
        bad_header(b"no"),
        bad_header(b"[]"),
        bad_header(b"\xff\xff"),
        bad_header(b'{"a":' + b"[" * 100_000),
        bad_header(b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'),
        bad_header(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}}'),
        bad_header(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}'),
        bad_header(b'{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}'),
        bad_header(b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,0]}}'),
        bad_header(b'{"a":{"dtype":8,"shape":[0],"data_offsets":[0,0]}}'),
        bad_header(b'{"a":{"dtype":"U8","shape":[0]}}'),
        bad_header(b'{"a":7}'),
    ],
)
def test_damaged_safetensors_have_no_digest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)

    found = weights_digest(tmp_path, "auto")

    assert isinstance(found, Unidentified)
    assert found.reason


def test_a_folder_without_weights_has_no_digest_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found = weights_digest(tmp_path, "auto")

    assert isinstance(found, Unidentified)
    assert str(tmp_path) in found.reason


def test_what_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")

    for folder in (tmp_path, tmp_path / "no-such-folder"):
        for mode in ("auto", "full"):
            assert isinstance(weights_digest(folder, mode), Unidentified)


def test_the_digest_of_files_does_not_depend_on_their_order() -> None:
    files = [FileEvidence(name, 1, "full", name * 64) for name in "abc"]

    assert digest_files("full", files) == digest_files("full", files[::-1])
    assert digest_files("full", files) != digest_files("full", files[:2])
    with pytest.raises(ValueError, match="0 files"):
        digest_files("auto", [])
    with pytest.raises(ValueError, match="2 files"):
        digest_files("auto", [files[0], files[0]])


def test_a_tensor_behind_the_end_of_the_file_is_corrupt() -> None:
    header = b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'

    assert len(plan_tensor_windows(header, 8 + len(header) + 9).windows) == 1
    with pytest.raises(Corrupt, match="after the end"):
        plan_tensor_windows(header, 8 + len(header) + 8)
