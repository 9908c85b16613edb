"""Reads a model's weight files to identify them; what is hashed is decided in core.weights.

Rule upheld here: nothing about these files is guessed. A file that cannot be read, is damaged, or
changes meanwhile makes the weights unidentified, never "probably the same". Blocking and free of
side effects: call it off the engine's threads' critical path. Only weights are looked at: what
`config.json` says enters the namespace by fields of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from pathlib import Path
from typing import BinaryIO, Final, Literal

from s3kv.core.weights import (
    FileEvidence,
    Unidentified,
    WindowPlan,
    digest_files,
    plan_spread_windows,
    plan_tensor_windows,
)
from s3kv.errors import Corrupt

_MAX_FILES: Final = 10_000
_MAX_HEADER_BYTES: Final = 100_000_000  # the safetensors library's own limit
_LENGTH: Final = struct.Struct("<Q")
_BLOB_NAME: Final = re.compile(r"[0-9a-f]{64}")
_OTHER_SUFFIXES: Final = (".bin", ".pt", ".gguf")
_PART_OF_SEVERAL: Final = re.compile(r"(.*-)\d{5}(-of-\d{5}\.[a-z]+)")


def weights_digest(model_dir: Path, mode: Literal["auto", "full"]) -> str | Unidentified:
    """Identify the weights in a folder (or a single weight file, with its other parts).

    Looks at all `*.safetensors` below the folder, else at all `*.bin`, `*.pt` and `*.gguf`; hidden
    folders and linked folders are left out. Returns "auto:..." or "full:..." with 64 hex digits
    (what each covers, and the residual risk of `auto`: see `s3kv.core.weights`), or why there is
    no digest. `full` reads every byte, `auto` a few KiB per tensor. Never raises for what lies on
    the disk.
    """
    try:
        files = _weight_files(model_dir)
        if not files:
            return Unidentified(f"no weight files in {model_dir}")
        if len(files) > _MAX_FILES:
            return Unidentified(f"more than {_MAX_FILES} weight files in {model_dir}")
        return digest_files(mode, [_evidence(name, path, mode) for name, path in files])
    except OSError as error:
        return Unidentified(f"cannot read {error.filename or model_dir}: {error.strerror}")
    except Corrupt as error:
        return Unidentified(str(error))


def _weight_files(model_dir: Path) -> list[tuple[str, Path]]:
    """(name, path) of every weight file, sorted by name; more than _MAX_FILES are cut off."""
    if model_dir.is_file():
        return [(path.name, path) for path in _parts(model_dir)]
    found: dict[str, list[tuple[str, Path]]] = {}
    for folder, subfolders, names in os.walk(model_dir, onerror=_reraise):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            pairs = found.setdefault(path.suffix, [])
            pairs.append((path.relative_to(model_dir).as_posix(), path))
    files = found.get(".safetensors", [])
    if not files:
        files = [pair for suffix in _OTHER_SUFFIXES for pair in found.get(suffix, [])]
    return sorted(files)[: _MAX_FILES + 1]


def _parts(file: Path) -> list[Path]:
    """A file, with its siblings if it is one part of several (`x-00001-of-00003.gguf`)."""
    named = _PART_OF_SEVERAL.fullmatch(file.name)
    if named is None:
        return [file]
    part = re.compile(re.escape(named[1]) + r"\d{5}" + re.escape(named[2]))
    return sorted(path for path in file.parent.iterdir() if part.fullmatch(path.name))


def _reraise(error: OSError) -> None:
    """A folder that cannot be listed may hold weights: os.walk would pass over it in silence."""
    raise error


def _evidence(name: str, path: Path, mode: Literal["auto", "full"]) -> FileEvidence:
    blob = _blob_sha256(path) if mode == "auto" else None
    if blob is not None:
        return FileEvidence(name, path.stat().st_size, "blob", blob)
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        if mode == "full":
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            evidence = FileEvidence(name, before.st_size, "full", sha256)
        else:
            evidence = _sampled(name, file, before.st_size)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Corrupt(f"{name} changed while it was read")
    return evidence


def _blob_sha256(path: Path) -> str | None:
    """The SHA-256 that names this file's content in a Hugging Face cache, if it lies in one."""
    if not path.is_symlink():
        return None
    target = Path(os.path.realpath(path))
    is_blob = target.parent.name == "blobs" and _BLOB_NAME.fullmatch(target.name) is not None
    return target.name if is_blob else None


def _sampled(name: str, file: BinaryIO, size_bytes: int) -> FileEvidence:
    if name.endswith(".safetensors"):
        plan = plan_tensor_windows(_safetensors_header(name, file, size_bytes), size_bytes)
        return FileEvidence(name, size_bytes, "tensors", _digest_windows(name, file, plan))
    plan = plan_spread_windows(name, size_bytes)
    return FileEvidence(name, size_bytes, "spread", _digest_windows(name, file, plan))


def _safetensors_header(name: str, file: BinaryIO, size_bytes: int) -> bytes:
    prefix = file.read(_LENGTH.size)
    length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else 0
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size_bytes - _LENGTH.size):
        raise Corrupt(f"{name} is not a safetensors file")
    return _read(name, file, _LENGTH.size, length)


def _digest_windows(name: str, file: BinaryIO, plan: WindowPlan) -> str:
    digest = hashlib.sha256(plan.structure.encode("ascii"))
    for start, length in plan.windows:
        digest.update(_read(name, file, start, length))
    return digest.hexdigest()


def _read(name: str, file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    content = file.read(length)
    if len(content) != length:
        raise Corrupt(f"{name} ends at {start + len(content)}, before what its header names")
    return content
