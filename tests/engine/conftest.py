"""Fixtures of the engine suite: one model folder per machine, one engine per test module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# vLLM's libraries warn while they are imported, and collecting tests makes warnings errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tests.engine.harness  # noqa: F401

if TYPE_CHECKING:
    from s3kv.cli.local_store import LocalStore
    from tests.engine.archives import Archive
    from tests.engine.harness import Engine
    from tests.faults.proxy import Proxy

HERE = Path(__file__).parent
MODELS = HERE.parent.parent / "build" / "models"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The engine warns about itself, and takes its time to start on a busy machine."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.engine)
        if item.get_closest_marker("filterwarnings") is None:
            # Faults of our own threads still fail a test.
            threads = "error::pytest.PytestUnhandledThreadExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings(threads))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def model() -> Path:
    """Folder of a tiny random-weight Llama."""
    from tests.engine.models import tiny_llama

    return tiny_llama(MODELS)


@pytest.fixture(scope="module")
def between(seaweed: LocalStore) -> Iterator[Proxy]:
    """A proxy in front of the SeaweedFS; clients of the module's engine go through it."""
    from tests.faults.proxy import proxy

    with proxy(seaweed.endpoint_url) as running:
        yield running


@pytest.fixture(scope="module")
def shared_engine(
    request: pytest.FixtureRequest, model: Path, between: Proxy, bucket: str
) -> Iterator[Engine]:
    """The module's one engine, on a prefix of its own.

    Its options are the module's `ENGINE_OPTIONS`: extra-config keys, engine arguments under
    `engine_args`.
    """
    from tests.engine.harness import engine

    options = dict(getattr(request.module, "ENGINE_OPTIONS", {}))
    prefix = f"engine-{os.urandom(6).hex()}"
    with engine(model, between.endpoint_url, bucket, prefix, **options) as started:
        yield started


def _new_archive(request: pytest.FixtureRequest, endpoint_url: str, bucket: str) -> Archive:
    from tests.engine.archives import Archive

    suite = request.path.stem.removeprefix("test_").replace("_", "-")
    return Archive(endpoint_url, bucket, f"{suite}-{os.urandom(4).hex()}")


@pytest.fixture
def archive(request: pytest.FixtureRequest, seaweed_endpoint: str, bucket: str) -> Archive:
    """A prefix that no other test uses."""
    return _new_archive(request, seaweed_endpoint, bucket)


@pytest.fixture(scope="module")
def shared_archive(request: pytest.FixtureRequest, seaweed_endpoint: str, bucket: str) -> Archive:
    """The prefix of the module's one engine `shared`."""
    return _new_archive(request, seaweed_endpoint, bucket)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, shared_archive: Archive) -> Iterator[Engine]:
    """The module's one engine, straight on the store. Its options: see `shared_engine`."""
    from tests.engine.fixtures_lifecycle import engine_on

    with engine_on(shared_archive, **getattr(request.module, "ENGINE_OPTIONS", {})) as running:
        yield running
