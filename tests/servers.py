"""Object stores as subprocesses on free loopback ports, for every suite that needs one."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s3kv.cli.local_store import (
    HOST,
    OWNER,
    LocalStore,
    StoreUser,
    create_bucket,
    end_with_parent,
    free_ports,
)

__all__ = [
    "OWNER",
    "READER",
    "LocalStore",
    "create_bucket",
    "moto_server",
    "seaweed_server",
]

READER = StoreUser("readerkey", "readersecret", read_only=True)
"""A second user of the SeaweedFS that tests start: it may read and list, nothing else."""

START_TIMEOUT_S = 30.0


@contextmanager
def seaweed_server(folder: Path) -> Iterator[LocalStore]:
    """A SeaweedFS with the users OWNER and READER; checks credentials and checksums."""
    store = LocalStore(folder, users=(OWNER, READER))
    store.start()
    try:
        yield store
    finally:
        store.kill()  # nobody misses its data, and an orderly end takes seconds


@contextmanager
def moto_server(folder: Path, *, page_keys: int = 1000) -> Iterator[str]:
    """A moto server's endpoint URL; knows S3's semantics, checks no credentials.

    folder: for its log; page_keys: keys per list page.
    """
    port = free_ports(1)[0]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            end_with_parent([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page_keys)},
            start_new_session=True,
        )
        try:
            _wait_until_it_answers(port, process)
            yield f"http://{HOST}:{port}"
        finally:
            process.kill()  # nobody misses its data
            process.wait(10)


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        try:
            connection.request("GET", "/moto-api/data.json")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            assert process.poll() is None, "moto server ended at once"
            assert time.monotonic() < deadline_s, "moto server does not answer"
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
