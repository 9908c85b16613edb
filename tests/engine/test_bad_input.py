"""What a user can get wrong: one error that names the thing and the remedy, and no harm."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from s3kv.errors import ConfigError
from tests.engine.fixtures_lifecycle import (
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Answer,
    Archive,
    engine,
    engine_on,
    local_answer,
    model_folder,
    our_log,
    our_threads,
    prompt_of,
    settle,
    wait_until,
)
from tests.servers import READER

pytestmark = ENGINE_MARKS

PROMPT = prompt_of(3 * CHUNK_TOKENS, seed=1)


# ------------------------------------------------------------- wrong configuration
@pytest.mark.parametrize(
    ("options", "field", "value", "remedy"),
    [
        ({"uri": "https://bucket/prefix"}, "uri", "https://bucket/prefix", "s3://bucket/prefix"),
        ({"chunk_token": 128}, "chunk_token", "128", "chunk_tokens"),
        ({"staging_bytes": "64KiB"}, "staging_bytes", "65536", "raise staging_bytes"),
    ],
    ids=["uri scheme", "mistyped option", "staging below one shard"],
)
def test_a_wrong_setting_stops_the_engine_with_one_error(
    archive: Archive, options: dict[str, Any], field: str, value: str, remedy: str
) -> None:
    try:
        with (
            pytest.raises(ConfigError) as raised,
            engine_on(archive, **options),
        ):
            raise AssertionError("the engine must not start")
    finally:
        _forget_failed_engine()
    assert raised.value.field == field
    text = str(raised.value)
    assert field in text
    assert value in text
    assert remedy in text
    assert archive.objects() == {}
    assert our_threads() == []


def _forget_failed_engine() -> None:
    """vLLM leaves its globals behind when a start fails."""
    import gc

    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    gc.collect()
    cleanup_dist_env_and_memory()


# ---------------------------------------------------------------- a bucket that refuses
@dataclass(frozen=True)
class Served:
    """An engine that ran without its archive."""

    cold: Answer
    again: Answer
    local: Answer
    errors: list[str]
    caught: dict[str, int]


def serve(archive: Archive) -> Served:
    with (
        our_log() as log,
        engine_on(archive) as running,
    ):
        wait_until(lambda: bool(log.texts(logging.ERROR)), "an error in the log")
        cold, local = running.ask(PROMPT), running.ask(PROMPT)
        settle(running)
        running.forget_local()
        again = running.ask(PROMPT)
        settle(running)
        errors, caught = log.texts(logging.ERROR), running.caught()
    return Served(cold, again, local, errors, caught)


def assert_served_without_archive(served: Served) -> None:
    assert served.cold.token_ids == served.local.token_ids == served.again.token_ids
    assert served.again.hit_tokens == 0
    assert served.caught == {}


@pytest.fixture
def bucket_names(archive: Archive) -> Iterator[set[str]]:
    before = archive.bucket_names()
    yield before
    assert archive.bucket_names() == before, "a bucket was created"


def test_a_bucket_that_does_not_exist_is_one_error_and_is_not_created(
    archive: Archive, bucket_names: set[str]
) -> None:
    absent = Archive(archive.endpoint_url, "no-such-bucket", archive.prefix)
    served = serve(absent)
    assert_served_without_archive(served)
    assert len(served.errors) == 1
    assert "no-such-bucket" in served.errors[0]
    assert "s3kv never creates a bucket" in served.errors[0]


def test_missing_credentials_are_one_error(
    archive: Archive, bucket_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        served = serve(archive)
    assert_served_without_archive(served)
    assert len(served.errors) == 1
    assert "AWS chain" in served.errors[0]
    assert archive.objects() == {}


def test_a_wrong_secret_is_one_error(
    archive: Archive, bucket_names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        served = serve(archive)
    assert_served_without_archive(served)
    assert len(served.errors) == 1
    assert archive.bucket in served.errors[0]
    assert "check the secret key" in served.errors[0]
    assert archive.objects() == {}


def test_credentials_that_may_only_read_load_and_save_nothing(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(archive) as running:
        local = local_answer(running, PROMPT)
    shards = archive.shards()
    other = prompt_of(2 * CHUNK_TOKENS, seed=2)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", READER.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", READER.secret_key)
        with our_log() as log, engine_on(archive) as running:
            warm = running.ask(PROMPT)
            saver = running.worker._saver
            assert saver is not None
            wait_until(lambda: bool(saver.read_only), "the probe's verdict")
            running.ask(other)
            settle(running)
            warnings = log.texts(logging.WARNING)
    assert warm.hit_tokens == 3 * CHUNK_TOKENS - 32
    assert warm.token_ids == local.token_ids
    assert sum("nothing is saved" in line for line in warnings) == 1
    assert archive.shards() == shards


def test_nothing_is_written_outside_the_prefix(archive: Archive) -> None:
    """Also not beside a prefix whose name begins alike."""
    before = set(archive.objects(""))
    with engine(
        model_folder(), archive.endpoint_url, archive.bucket, f"{archive.prefix}/deep/er"
    ) as running:
        running.ask(PROMPT)
        settle(running)
    written = set(archive.objects("")) - before
    assert written
    assert all(name.startswith(f"{archive.prefix}/deep/er/") for name in written)
