"""Folders of small weight files, and what tests do to them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import save_file

from s3kv.runtime.weight_files import weights_digest

Mode = Literal["auto", "full"]


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(seed)
    return {
        "model.embed.weight": noise.standard_normal((64, 128)).astype(np.float32),
        "model.layers.0.weight": noise.standard_normal((16, 128)).astype(np.float32),
        "model.norm.weight": noise.standard_normal(128).astype(np.float32),
        "model.empty": np.zeros((0, 4), np.float32),
    }


def model_in(folder: Path, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(), folder / name, metadata={"format": "pt"})
    return folder / name


def header_of(path: Path) -> tuple[bytes, int]:
    raw = path.read_bytes()
    return raw[8 : 8 + struct.unpack_from("<Q", raw)[0]], len(raw)


def digest(folder: Path, mode: Mode = "auto") -> str:
    found = weights_digest(folder, mode)
    assert isinstance(found, str), found
    return found


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def with_header(path: Path, change: dict[str, object]) -> None:
    """Rewrite the header with other top-level entries; the data stay."""
    header, _ = header_of(path)
    data = path.read_bytes()[8 + len(header) :]
    document = json.loads(header) | change
    text = json.dumps({k: v for k, v in document.items() if v is not None}).encode()
    text = text.ljust(len(header) + 256)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
