"""One digest for a model's weight files, from evidence that somebody else has read.

Rule upheld here: the digest depends on the files' names, sizes and contents only (not on paths,
times, or the order of a listing), and what cannot be identified has no digest. Two kinds:

`full:...`  every byte of every file is hashed.
`auto:...`  per file the cheapest evidence that is good enough: the SHA-256 under which a Hugging
            Face cache stores it; else, for safetensors, the size, the header without
            `__metadata__`, and one window of at most WINDOW_BYTES of *every* tensor, at a place
            that follows from the tensor's name (beginnings are often alike: padding, zeros); else
            the size and SPREAD_WINDOWS windows spread over the file.

**Residual risk of windows**: weights of equal names, shapes and sizes that differ only outside all
windows have equal digests, hence share KV cache. Training changes practically every byte of a
tensor that it touches, so in safetensors this takes an edit by hand of a few rows or bytes. For
`*.bin`, `*.pt` and `*.gguf`, whose tensors we do not find, a change of one small tensor can escape.
Whoever edits weights in such ways uses `full`, or a literal `weights_digest`.

Reading the files is `s3kv.runtime.weight_files`' part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from s3kv.core.namespace import canonical_json
from s3kv.errors import Corrupt

WINDOW_BYTES: Final = 4096
SPREAD_WINDOWS: Final = 64

_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Unidentified:
    """These weights have no digest, and why, in words for the user: nothing may be shared."""

    reason: str


@dataclass(frozen=True, slots=True)
class FileEvidence:
    """What is known of one weight file.

    name: relative to the model's folder, with "/"; size_bytes: of the file; method: where the
    digest comes from; sha256: 64 hex digits over what the method looks at.
    """

    name: str
    size_bytes: int
    method: Literal["blob", "full", "tensors", "spread"]
    sha256: str


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What to read of one file: `structure` is hashed first, then the windows' bytes in order.

    structure: canonical text of all that is known without the windows; windows: (start, length) in
    bytes from the beginning of the file.
    """

    structure: str
    windows: tuple[tuple[int, int], ...]


def plan_tensor_windows(header: bytes, size_bytes: int) -> WindowPlan:
    """One window of every tensor of a safetensors file.

    header: the JSON after the 8-byte length, padding included; size_bytes: of the whole file.
    Tensors without bytes have no window, but are part of the structure like all others. Raises
    Corrupt if this is no safetensors header of a file of this size.
    """
    tensors = {name: _described(name, value) for name, value in _tensors(header).items()}
    data_start = _LENGTH_BYTES + len(header)
    windows = []
    for name, (_, _, begin, end) in sorted(tensors.items()):
        if data_start + end > size_bytes:
            raise Corrupt(f"tensor {name} ends after the end of the file")
        if begin < end:
            windows.append(_window(name, data_start + begin, end - begin))
    structure = canonical_json([size_bytes, data_start, tensors])
    return WindowPlan(structure, tuple(windows))


def plan_spread_windows(name: str, size_bytes: int) -> WindowPlan:
    """Windows over a file whose tensors we do not find: one in each of SPREAD_WINDOWS equal parts.

    The first and the last bytes are always among them, because formats keep their tables there;
    files that are hardly larger than all windows together are read whole.
    """
    structure = canonical_json([size_bytes])
    if size_bytes <= (SPREAD_WINDOWS + 2) * WINDOW_BYTES:
        return WindowPlan(structure, ((0, size_bytes),) if size_bytes else ())
    windows = [(0, WINDOW_BYTES)]
    for index in range(SPREAD_WINDOWS):
        start = size_bytes * index // SPREAD_WINDOWS
        end = size_bytes * (index + 1) // SPREAD_WINDOWS
        windows.append(_window(f"{name}#{index}", start, end - start))
    windows.append((size_bytes - WINDOW_BYTES, WINDOW_BYTES))
    return WindowPlan(structure, tuple(windows))


def digest_files(kind: Literal["auto", "full"], files: Sequence[FileEvidence]) -> str:
    """`kind`, a colon and 64 hex digits over the evidence of all weight files.

    The order of `files` does not matter. Raises ValueError if there is none, or a name twice.
    """
    if not files or len({file.name for file in files}) != len(files):
        raise ValueError(f"cannot identify weights by {len(files)} files")
    evidence = [asdict(file) for file in sorted(files, key=lambda file: file.name)]
    return f"{kind}:{hashlib.sha256(canonical_json(evidence).encode('ascii')).hexdigest()}"


def _tensors(header: bytes) -> dict[str, object]:
    try:
        document = json.loads(header.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Corrupt("safetensors header is not JSON") from error
    if not isinstance(document, dict):
        raise Corrupt("safetensors header is no JSON object")
    return {name: value for name, value in document.items() if name != "__metadata__"}


def _described(name: str, tensor: object) -> tuple[str, list[int], int, int]:
    """dtype, shape, begin and end of one tensor; Corrupt unless it has these and nothing else."""
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        raise Corrupt(f"tensor {name} is not described by dtype, shape and offsets")
    dtype, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(offsets):
        raise Corrupt(f"tensor {name} has an odd dtype, shape or offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Corrupt(f"tensor {name} lies at {offsets}")
    return dtype, shape, offsets[0], offsets[1]


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _window(name: str, start: int, length: int) -> tuple[int, int]:
    """A window of [start, start + length) whose place follows from `name`."""
    room = length - WINDOW_BYTES
    if room <= 0:
        return start, length
    seed = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return start + seed % (room + 1), WINDOW_BYTES
