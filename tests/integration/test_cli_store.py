"""The command against real servers: what it says, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import probe_capabilities
from s3kv.bucket.sdk import make_body_client
from s3kv.cli import app
from s3kv.cli.local_store import free_ports
from s3kv.core.keys import namespace_key
from tests.bucket.stores import connected_store, settings_for
from tests.fakes.small_archive import SmallArchive, write_archive
from tests.servers import READER

T = TypeVar("T")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


def s3kv(
    endpoint_url: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Result:
    """Run the command as a user would."""
    given = [*arguments, "--endpoint-url", endpoint_url]
    return CliRunner().invoke(app, given, env=environment, catch_exceptions=False)


def document_of(result: Result) -> dict[str, Any]:
    """The one document; it agrees with the exit code."""
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["exit_code"] == result.exit_code
    return document


def with_store(
    endpoint_url: str, uri: str, work: Callable[[ObjectStore], Coroutine[None, None, T]]
) -> T:
    """Do something to the bucket beside the command."""
    import asyncio

    async def run() -> T:
        async with connected_store(endpoint_url, uri) as store:
            return await work(store)

    return asyncio.run(run())


def archive_at(endpoint_url: str, uri: str, label: str = "") -> SmallArchive:
    """A small archive, written just now."""
    return with_store(endpoint_url, uri, lambda store: write_archive(store, label))


def keys_under(endpoint_url: str, uri: str) -> list[str]:
    """Every key, sorted."""

    async def keys(store: ObjectStore) -> list[str]:
        found = [each.key async for page in store.list("", timeout_s=10.0) for each in page]
        return sorted(found)

    return with_store(endpoint_url, uri, keys)


def uploads_under(endpoint_url: str, uri: str) -> list[str]:
    """Names of unfinished uploads."""
    settings = settings_for(endpoint_url, uri)
    client = make_body_client(settings, None)
    try:
        reply = client.list_multipart_uploads(
            Bucket=settings.address.bucket, Prefix=settings.address.prefix
        )
    finally:
        client.close()
    return [found["Key"] for found in reply.get("Uploads", ())]


def checks_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """State of each check."""
    return {found["check"]: found["state"] for found in document["checks"]}


class TestDoctor:
    def test_a_good_store_is_ready_and_nothing_is_left(self, endpoint: str, fresh_uri: str) -> None:
        result = s3kv(endpoint, "doctor", fresh_uri, "--json")

        document = document_of(result)
        assert set(checks_of(document).values()) == {"ok"}
        assert set(checks_of(document)) >= {
            "credentials",
            "bucket",
            "conditional PUT",
            "ranged GET",
            "multipart upload",
            "multipart abort",
            "list",
            "delete",
            "clock",
            "latency",
            "bandwidth",
            "checksum mode",
        }
        assert (result.exit_code, document["verdict"]) == (0, "ready")
        assert keys_under(endpoint, fresh_uri) == []
        assert uploads_under(endpoint, fresh_uri) == []

    def test_words_for_people_say_what_an_engine_would_do(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        result = s3kv(moto_endpoint, "doctor", fresh_uri, "--checksum-mode", "when_supported")

        assert result.exit_code == 0
        assert "when_supported is accepted" in result.stdout
        assert "load from here and save to it" in result.stdout
        assert "4-64 MiB" in result.stdout

    def test_a_wrong_secret_is_unusable_and_no_credential_is_printed(
        self, seaweed_endpoint: str, fresh_uri: str
    ) -> None:
        wrong = {"AWS_SECRET_ACCESS_KEY": "open-sesame"}

        for form in ((), ("--json",)):
            result = s3kv(seaweed_endpoint, "doctor", fresh_uri, *form, environment=wrong)

            assert result.exit_code == 2
            assert "SignatureDoesNotMatch" in result.stdout
            assert "secret key" in result.stdout
            for secret in ("open-sesame", "s3kvkey", "s3kvsecret"):
                assert secret not in result.output

    def test_missing_credentials_are_unusable(self, seaweed_endpoint: str, fresh_uri: str) -> None:
        none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}

        result = s3kv(seaweed_endpoint, "doctor", fresh_uri, "--json", environment=none)

        document = document_of(result)
        assert result.exit_code == 2
        assert checks_of(document) == {"credentials": "failed"}
        assert "AWS chain" in document["checks"][0]["remedy"]

    def test_a_reader_is_usable_with_limits(self, seaweed_endpoint: str, fresh_uri: str) -> None:
        archive_at(seaweed_endpoint, fresh_uri)
        before = keys_under(seaweed_endpoint, fresh_uri)
        reader = {
            "AWS_ACCESS_KEY_ID": READER.access_key,
            "AWS_SECRET_ACCESS_KEY": READER.secret_key,
        }

        result = s3kv(seaweed_endpoint, "doctor", fresh_uri, "--json", environment=reader)

        document = document_of(result)
        states = checks_of(document)
        assert (result.exit_code, document["verdict"]) == (1, "limited")
        assert (states["write"], states["ranged GET"], states["clock"]) == ("warning", "ok", "ok")
        assert "save nothing" in document["engine"]
        assert keys_under(seaweed_endpoint, fresh_uri) == before

    def test_an_unreachable_store_is_unusable(self, fresh_uri: str) -> None:
        result = s3kv(f"http://127.0.0.1:{free_ports(1)[0]}", "doctor", fresh_uri, "--json")

        document = document_of(result)
        assert result.exit_code == 2
        assert "--endpoint-url" in document["checks"][-1]["remedy"]

    def test_it_promises_what_an_engine_finds(self, endpoint: str, fresh_uri: str) -> None:
        found = with_store(endpoint, fresh_uri, probe_capabilities)

        states = checks_of(document_of(s3kv(endpoint, "doctor", fresh_uri, "--json")))

        assert (states["write"] == "ok") == found.writable
        assert (states["conditional PUT"] == "ok") == found.conditional_put


@pytest.mark.parametrize("command", ["doctor", "ls", "stat"])
def test_a_missing_bucket_is_unusable_and_never_created(command: str, endpoint: str) -> None:
    uri = f"s3://s3kv-missing-{command}/prefix"
    for _ in range(2):
        result = s3kv(endpoint, command, uri, "--json")

        assert result.exit_code == 2
        assert "NoSuchBucket" in result.stdout
        assert "never creates" in result.stdout


@pytest.mark.parametrize("command", ["ls", "stat"])
def test_a_refusal_is_one_line_and_no_traceback(
    command: str, seaweed_endpoint: str, fresh_uri: str
) -> None:
    wrong = {"AWS_SECRET_ACCESS_KEY": "open-sesame"}

    result = s3kv(seaweed_endpoint, command, fresh_uri, environment=wrong)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"s3kv: uri='{fresh_uri}': SignatureDoesNotMatch")
    assert "open-sesame" not in line


class TestLs:
    def test_an_empty_prefix_is_no_failure(self, endpoint: str, fresh_uri: str) -> None:
        result = s3kv(endpoint, "ls", fresh_uri)

        assert (result.exit_code, result.stdout) == (0, f"no archive under {fresh_uri}\n")

    def test_namespaces_are_listed_with_what_is_in_them(
        self, endpoint: str, fresh_uri: str
    ) -> None:
        first = archive_at(endpoint, fresh_uri)
        second = archive_at(endpoint, fresh_uri, "team-b")

        document = document_of(s3kv(endpoint, "ls", fresh_uri, "--json"))

        rows = {row["id"]: row for row in document["namespaces"]}
        assert set(rows) == {first.namespace.id, second.namespace.id}
        row = rows[second.namespace.id]
        assert row["label"] == "team-b"
        assert (row["chunks"], row["indexed_chunks"], row["tokens"]) == (3, 3, 160)
        assert row["shard_bytes"] == second.shard_bytes
        assert 0 <= row["newest_age_s"] <= row["oldest_age_s"] < 60
        assert 119 <= row["last_used_age_s"] < 200
        assert row["problems"] == []
        assert document["foreign"]["objects"] == 0

    def test_people_see_a_table_and_foreign_names(self, moto_endpoint: str, fresh_uri: str) -> None:
        archive = archive_at(moto_endpoint, fresh_uri)

        async def litter(store: ObjectStore) -> None:
            await store.put("backup/notes.txt", b"mine", timeout_s=5.0)

        with_store(moto_endpoint, fresh_uri, litter)
        result = s3kv(moto_endpoint, "ls", fresh_uri)

        title, row, foreign = result.stdout.splitlines()
        assert title.split()[:2] == ["namespace", "label"]
        assert row.startswith(archive.namespace.id[:12])
        assert "2 layers x 3 heads x 64, bfloat16" in row
        assert foreign == "not s3kv's, left alone: 1 object, 4 B: backup/"


class TestStat:
    def test_one_namespace_in_detail(self, endpoint: str, fresh_uri: str) -> None:
        archive = archive_at(endpoint, fresh_uri)
        before = keys_under(endpoint, fresh_uri)

        result = s3kv(endpoint, "stat", fresh_uri, "--json")

        document = document_of(result)
        index, shards = document["index"], document["shards"]
        assert result.exit_code == 0
        assert document["namespace"] == archive.namespace.id
        assert document["fields"]["chunk_tokens"] == 64
        assert (index["head_tick"], index["live_records"], index["dead_records"]) == (1, 3, 1)
        assert index["inbox_segments"]["count"] == 1
        assert index["pause"] == {"loads": False, "saves": False}
        assert index["watermark_s"] > 0
        assert index["live_without_shards"] == index["chunks_without_live_record"] == 0
        assert (shards["count"], shards["tail_shards"], shards["tokens"]) == (3, 1, 160)
        assert document["sample"]["problem"] == ""
        assert document["sample"]["key"] in archive.shard_keys
        assert keys_under(endpoint, fresh_uri) == before

    def test_people_see_the_same(self, moto_endpoint: str, fresh_uri: str) -> None:
        archive = archive_at(moto_endpoint, fresh_uri)

        result = s3kv(moto_endpoint, "stat", fresh_uri, archive.namespace.id[:6])

        assert result.exit_code == 0
        assert f"namespace {archive.namespace.id}" in result.stdout
        assert "header and every block are intact" in result.stdout

    def test_the_shard_that_a_uri_names_is_verified(self, endpoint: str, fresh_uri: str) -> None:
        key = archive_at(endpoint, fresh_uri).shard_keys[1]

        document = document_of(s3kv(endpoint, "stat", f"{fresh_uri}/{key}", "--json"))

        assert document["exit_code"] == 0
        assert document["shard"]["block_count"] == 4

    def test_a_damaged_shard_is_told_and_changes_the_exit_code(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        key = archive_at(moto_endpoint, fresh_uri).shard_keys[1]

        async def damage(store: ObjectStore) -> None:
            body = await store.get(key, max_bytes=1 << 20, timeout_s=5.0)
            assert isinstance(body, bytes)
            await store.put(key, body[:-1] + bytes([body[-1] ^ 1]), timeout_s=5.0)

        with_store(moto_endpoint, fresh_uri, damage)
        result = s3kv(moto_endpoint, "stat", f"{fresh_uri}/{key}")

        assert result.exit_code == 1
        assert "block 3 of group 0 is damaged" in result.stdout

    def test_a_namespace_must_be_named_when_there_are_several(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        for label in ("", "other"):
            archive_at(moto_endpoint, fresh_uri, label)

        for arguments, says in (((), "2 namespaces fit"), (("zz",), "no such namespace")):
            result = s3kv(moto_endpoint, "stat", fresh_uri, *arguments)

            assert (result.exit_code, result.stdout) == (2, "")
            (line,) = result.stderr.splitlines()
            assert says in line

    def test_a_lost_namespace_document_is_told(self, moto_endpoint: str, fresh_uri: str) -> None:
        archive = archive_at(moto_endpoint, fresh_uri)
        key = namespace_key(archive.namespace.id)

        async def lose(store: ObjectStore) -> None:
            await store.delete([key], timeout_s=5.0)

        with_store(moto_endpoint, fresh_uri, lose)
        document = document_of(s3kv(moto_endpoint, "stat", fresh_uri, "--json"))

        assert document["exit_code"] == 1
        assert document["problem"] == "there is no NAMESPACE.json"
        assert document["shards"]["chunks"] == 3


def test_the_commands_work_where_torch_and_vllm_are_not_installed(
    moto_endpoint: str, fresh_uri: str
) -> None:
    archive_at(moto_endpoint, fresh_uri)
    script = (
        "import sys; sys.modules.update(torch=None, vllm=None)\nfrom s3kv.cli import main; main()"
    )
    for command in ("doctor", "ls", "stat"):
        ran = subprocess.run(
            [sys.executable, "-c", script, command, fresh_uri, "--endpoint-url", moto_endpoint],
            capture_output=True,
            text=True,
            check=False,
        )

        assert (ran.returncode, ran.stderr) == (0, "")
