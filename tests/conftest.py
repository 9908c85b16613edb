"""Fixtures of all suites: object stores once per session, nothing heavy imported here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from s3kv.cli.local_store import LocalStore
    from tests.faults.http_server import ScriptedServer

BUCKET = "s3kv-tests"

ORIGINAL_AWS = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
"""What this machine's environment said, for the suite that uses a real bucket."""

settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> None:
    """The standard AWS chain finds the test stores' credentials and nothing of this machine."""
    for name in ORIGINAL_AWS:
        del os.environ[name]
    os.environ.update(
        AWS_ACCESS_KEY_ID="s3kvkey",
        AWS_SECRET_ACCESS_KEY="s3kvsecret",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
    )


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """A running SeaweedFS with the bucket BUCKET."""
    from tests.servers import create_bucket, seaweed_server

    with seaweed_server(tmp_path_factory.mktemp("seaweed")) as store:
        create_bucket(store.endpoint_url, BUCKET)
        yield store


@pytest.fixture(scope="session")
def seaweed_endpoint(seaweed: LocalStore) -> str:
    """Endpoint URL of the SeaweedFS."""
    return seaweed.endpoint_url


@pytest.fixture(scope="session")
def moto_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Endpoint URL of a moto server with the bucket BUCKET and pages of 50 keys."""
    from tests.servers import create_bucket, moto_server

    with moto_server(tmp_path_factory.mktemp("moto"), page_keys=50) as endpoint_url:
        create_bucket(endpoint_url, BUCKET)
        yield endpoint_url


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """An HTTP server that answers what the test tells it to."""
    from tests.faults.http_server import scripted_server

    with scripted_server() as scripted:
        yield scripted


@pytest.fixture(scope="session")
def bucket() -> str:
    """The bucket that exists on every test store."""
    return BUCKET


@pytest.fixture
def fresh_uri() -> str:
    """An `s3://` URI whose prefix no other test uses."""
    return f"s3://{BUCKET}/t-{os.urandom(6).hex()}"


@pytest.fixture
def real_uri(monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix of the real bucket that S3KV_TEST_URI names, with this machine's AWS chain."""
    base = os.environ.get("S3KV_TEST_URI")
    if base is None:
        pytest.skip("S3KV_TEST_URI names no real bucket")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ORIGINAL_AWS.items():
        monkeypatch.setenv(name, value)
    return f"{base.rstrip('/')}/t-{os.urandom(6).hex()}"
