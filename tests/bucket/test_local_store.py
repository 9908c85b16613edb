from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from s3kv.bucket.base import MISSING
from s3kv.cli.local_store import LocalStore, create_bucket, free_ports
from s3kv.errors import Transient
from tests.bucket.stores import plain_store


async def test_data_survives_a_kill(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.start()
    try:
        create_bucket(store.endpoint_url, "kept")
        create_bucket(store.endpoint_url, "kept")
        async with plain_store(store.endpoint_url, "s3://kept/x") as client:
            await client.put("a", bytes(200_000), timeout_s=10)
        store.kill()
        store.start()
        async with plain_store(store.endpoint_url, "s3://kept/x") as client:
            assert await client.get("a", max_bytes=200_000, timeout_s=10) == bytes(200_000)
            assert await client.stat("b", timeout_s=10) is MISSING
    finally:
        store.kill()


def test_a_store_that_cannot_start_tells_why(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    store = LocalStore(tmp_path, port=port)
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises((Transient, OSError)):
        store.start()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs util-linux")
def test_no_process_is_left_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from s3kv.cli.local_store import LocalStore; "
        "store = LocalStore(pathlib.Path(sys.argv[1])); store.start(); "
        "print(store.endpoint_url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline().rpartition(":")[2])
        parent.kill()
    deadline_s = time.monotonic() + 10
    while _listens(port):
        assert time.monotonic() < deadline_s, "the store still listens"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_command_line_tool_runs_until_it_is_told_to_end(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "tools/local_store.py", str(tmp_path / "store"), "--bucket", "hand-made"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert "hand-made" in lines[0]
        assert any(
            line.startswith("export AWS_ENDPOINT_URL_S3=http://127.0.0.1:") for line in lines
        )
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
