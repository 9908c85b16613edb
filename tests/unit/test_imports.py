"""Who may import whom, and what importing costs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "vllm", "boto3", "botocore", "aiobotocore", "transformers")


def _checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools/check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _heavy_after_importing(module: str) -> set[str]:
    """Which heavy packages a fresh interpreter holds after importing the module."""
    script = (
        f"import json, sys, {module}; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_every_module_keeps_to_its_layer() -> None:
    assert _checker().check_tree(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("s3kv/core/keys.py", "import asyncpg"),
        ("s3kv/core/keys.py", "from s3kv.bucket.base import ObjectStore"),
        ("s3kv/core/keys.py", "from s3kv import runtime"),
        ("s3kv/core/keys.py", "def late() -> None:\n    import torch"),
        ("s3kv/core/keys.py", "from .ids import BlockHash"),
        ("s3kv/bucket/memory.py", "import botocore.exceptions"),
        ("s3kv/bucket/memory.py", "from s3kv.runtime.loop import LoopThread"),
        ("s3kv/runtime/loop.py", "import torch"),
        ("s3kv/runtime/loop.py", "from s3kv.device.slots import SlotPool"),
        ("s3kv/device/slots.py", "import vllm"),
        ("s3kv/cli/demo.py", "from s3kv.connector import S3KVConnector"),
        ("s3kv/cli/demo.py", "import boto3"),
        ("s3kv/connector/scheduler.py", "import s3kv.cli.demo"),
        ("s3kv/unheard_of/x.py", ""),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert len(_checker().check_file(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("s3kv/core/keys.py", "import numpy as np\nimport xxhash\nfrom s3kv.errors import Corrupt"),
        ("s3kv/bucket/s3.py", "from botocore.exceptions import ClientError"),
        ("s3kv/connector/worker.py", "import torch\nfrom s3kv.runtime.loop import LoopThread"),
        (
            "s3kv/runtime/loop.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        ),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert _checker().check_file(path, source) == []


@pytest.mark.parametrize("module", ["s3kv", "s3kv.config", "s3kv.cli"])
def test_importing_the_package_or_the_command_is_cheap(module: str) -> None:
    assert _heavy_after_importing(module) == set()
