"""`s3kv sweep` and `s3kv doctor --rebuild` against real servers: what they say and leave alone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from s3kv.bucket.base import ObjectInfo
from s3kv.core.keys import inbox_prefix, set_key, tick_prefix
from s3kv.runtime.clock import Clock
from tests.bucket.stores import connected_store, uploads_by
from tests.fakes.small_archive import GEOMETRY
from tests.fakes.sweep_archive import SweepArchive
from tests.integration.test_cli_store import document_of, s3kv, uploads_under

T = TypeVar("T")

pytestmark = pytest.mark.timeout(60)

DAY_S = 86_400.0
FULL_BYTES = GEOMETRY.header_bytes + 4 * GEOMETRY.block_bytes


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


def with_archive(
    endpoint_url: str, uri: str, work: Callable[[SweepArchive], Coroutine[None, None, T]]
) -> T:
    """Do something with an archive that has its NAMESPACE.json."""

    async def run() -> T:
        async with connected_store(endpoint_url, uri) as store:
            archive = SweepArchive(store, Clock())
            await archive.begin()
            return await work(archive)

    return asyncio.run(run())


def everything(endpoint_url: str, uri: str) -> dict[str, tuple[int, str, float]]:
    """Size, ETag and time of every object."""

    async def look(archive: SweepArchive) -> dict[str, tuple[int, str, float]]:
        pages = archive.store.list("", timeout_s=10.0)
        return {
            found.key: (found.size, found.etag, found.modified_s)
            async for page in pages
            for found in page
            if not found.key.endswith("NAMESPACE.json")
        }

    return with_archive(endpoint_url, uri, look)


async def used_and_unused(archive: SweepArchive) -> SweepArchive:
    """One chunk of today, one of ten days ago, one that nobody lists."""
    await archive.save("used")
    await archive.save("unused", blocks=2, age_s=10 * DAY_S)
    await archive.upload("orphan")
    await archive.fold()
    return archive


def shards_of(archive: SweepArchive, *names: str) -> set[str]:
    return {key for name in names for key in archive.keys(name)}


def keys_in_data(found: dict[str, Any]) -> set[str]:
    return {key for key in found if "/data/" in key}


def namespace_row(document: dict[str, Any]) -> dict[str, Any]:
    (row,) = document["namespaces"]
    found: dict[str, Any] = row
    return found


async def outlived(archive: SweepArchive, name: str, age_s: float) -> None:
    """Return when the store calls the shards so old: nobody can tell it another age."""
    for key in archive.keys(name):
        while True:
            found = await archive.store.stat(key, timeout_s=5.0)
            assert isinstance(found, ObjectInfo)
            if found.age_s >= age_s:
                break
            await asyncio.sleep(0.1)


class TestCommand:
    def test_a_dry_run_changes_no_byte_and_yes_forgets_at_once(
        self, endpoint: str, fresh_uri: str
    ) -> None:
        async def fill(archive: SweepArchive) -> None:
            await archive.save("unused", blocks=2, age_s=10 * DAY_S)
            await outlived(archive, "unused", 4.0)
            # Used in the future, as a fast clock says it: no limit of seconds reaches it.
            await archive.save("used", age_s=-600.0)
            await archive.fold()

        with_archive(endpoint, fresh_uri, fill)
        before = everything(endpoint, fresh_uri)
        arguments = ("sweep", fresh_uri, "--ttl", "2s")

        document = document_of(s3kv(endpoint, *arguments, "--json"))

        row = namespace_row(document)
        assert (document["exit_code"], document["dry_run"], row["condemned"]) == (0, True, {})
        assert row["goes_after_grace"]["expired"]["objects"] == 1
        assert row["goes_after_grace"]["expired"]["bytes"] < FULL_BYTES
        assert (row["stays"]["objects"], row["folders"]) == (1, 256)
        assert everything(endpoint, fresh_uri) == before

        words = s3kv(endpoint, *arguments, "--yes")

        assert words.exit_code == 0
        assert "deletes 1 object more" in words.stdout

        async def seen(archive: SweepArchive) -> bool:
            return await archive.live() == archive.names("used")

        assert with_archive(endpoint, fresh_uri, seen)
        after = everything(endpoint, fresh_uri)
        assert {key: after[key] for key in keys_in_data(before)} == {
            key: before[key] for key in keys_in_data(before)
        }

    def test_a_size_limit_forgets_the_least_recently_used(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        async def fill(archive: SweepArchive) -> int:
            for age in range(4):
                await archive.save(f"chunk {age}", age_s=age * DAY_S)
            await archive.pin("demo", "chunk 3")
            return 4 * archive.subject.bytes_per_block

        chunk_bytes = with_archive(moto_endpoint, fresh_uri, fill)

        limit = str(3 * chunk_bytes)
        result = s3kv(moto_endpoint, "sweep", fresh_uri, "--max-bytes", limit, "--yes")

        async def seen(archive: SweepArchive) -> bool:
            return await archive.live() == archive.names("chunk 0", "chunk 1", "chunk 3")

        assert result.exit_code == 0
        assert with_archive(moto_endpoint, fresh_uri, seen)

    def test_what_stands_against_it_is_told(self, moto_endpoint: str, fresh_uri: str) -> None:
        async def fill(archive: SweepArchive) -> None:
            await used_and_unused(archive)
            await archive.store.put(set_key(archive.id, "torn"), b"?", timeout_s=5.0)

        with_archive(moto_endpoint, fresh_uri, fill)
        before = everything(moto_endpoint, fresh_uri)

        result = s3kv(moto_endpoint, "sweep", fresh_uri, "--ttl", "1d", "--yes")

        assert result.exit_code == 1
        assert "is left alone: set torn cannot be read" in result.stdout
        assert everything(moto_endpoint, fresh_uri) == before

    def test_foreign_objects_and_young_uploads_stay(
        self, seaweed_endpoint: str, fresh_uri: str
    ) -> None:
        # Not moto: it says of every upload that it began in 2010.
        endpoint = seaweed_endpoint

        async def fill(archive: SweepArchive) -> list[str]:
            await used_and_unused(archive)
            (shard,) = archive.keys("used")
            foreign = [f"{shard}.bak", f"{archive.id}/data/zz/notes", "backup/notes"]
            for key in foreign:
                await archive.store.put(key, b"mine", timeout_s=5.0)
            await uploads_by(endpoint, fresh_uri)(archive.keys("upload")[0])
            return foreign

        foreign = with_archive(endpoint, fresh_uri, fill)

        document = document_of(s3kv(endpoint, "sweep", fresh_uri, "--yes", "--json"))

        row = namespace_row(document)
        assert document["foreign_folders"] == ["backup/"]
        assert row["foreign"]["objects"] == 1
        assert any(name.endswith("/data/zz/") for name in row["foreign"]["names"])
        assert set(foreign) <= set(everything(endpoint, fresh_uri))
        assert (row["unfinished_uploads"], len(uploads_under(endpoint, fresh_uri))) == (0, 1)

    def test_it_goes_on_from_its_file(
        self, moto_endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        archive = with_archive(moto_endpoint, fresh_uri, used_and_unused)
        path = tmp_path / "place"
        same: dict[str, object] = {
            "uri": fresh_uri,
            "endpoint_url": moto_endpoint,
            "ttl_s": None,
            "max_bytes": None,
            "namespace": None,
        }
        same |= {"renew_after_s": None, "quarantine_age_s": 30 * DAY_S}
        done = [f"{number:02x}" for number in range(200)]
        state = {
            "format": "s3kv-sweep-state/1",
            "sweep": same,
            "written_s": int(Clock().unix_s()),
            "done": {archive.id: done},
        }
        path.write_text(json.dumps(state))

        arguments = ("sweep", fresh_uri, "--yes", "--state", str(path), "--json")
        first = document_of(s3kv(moto_endpoint, *arguments))
        second = document_of(s3kv(moto_endpoint, *arguments))

        rows = [namespace_row(document) for document in (first, second)]
        assert [row["folders_done_before"] for row in rows] == [200, 0]
        assert [row["folders"] for row in rows] == [56, 256]
        assert not path.exists()

    def test_as_a_service_it_prints_one_line_a_pass_and_ends_on_sigterm(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        with_archive(moto_endpoint, fresh_uri, used_and_unused)
        command = [sys.executable, "-c", "from s3kv.cli import main; main()", "sweep", fresh_uri]
        command += ["--endpoint-url", moto_endpoint, "--every", "1s", "--yes"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            lines = [service.stdout.readline() for _ in range(2)]
            service.send_signal(signal.SIGTERM)
            rest = service.stdout.read()

        assert service.returncode == 0
        assert all("deleted 0 objects 0 B" in line for line in lines)
        assert "Traceback" not in rest

    def test_two_commands_at_once(self, moto_endpoint: str, fresh_uri: str) -> None:
        with_archive(moto_endpoint, fresh_uri, used_and_unused)
        command = [sys.executable, "-c", "from s3kv.cli import main; main()", "sweep", fresh_uri]
        command += ["--endpoint-url", moto_endpoint, "--ttl", "1d", "--yes", "--json"]

        # Both raise the watermark and adopt.
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        documents = [json.loads(each.communicate()[0]) for each in both]

        assert [document["exit_code"] for document in documents] == [0, 0]

        async def seen(archive: SweepArchive) -> bool:
            return await archive.live() == archive.names("used")

        assert with_archive(moto_endpoint, fresh_uri, seen)


# ------------------------------------------------------------------ the rebuild
class TestRebuild:
    def test_an_emptied_index_is_made_again(self, endpoint: str, fresh_uri: str) -> None:
        async def fill(archive: SweepArchive) -> None:
            await used_and_unused(archive)
            for prefix in (tick_prefix(archive.id), inbox_prefix(archive.id)):
                async for page in archive.store.list(prefix, timeout_s=5.0):
                    await archive.store.delete([found.key for found in page], timeout_s=5.0)

        with_archive(endpoint, fresh_uri, fill)
        before = everything(endpoint, fresh_uri)
        assert before == {key: value for key, value in before.items() if "/data/" in key}

        document = document_of(s3kv(endpoint, "doctor", fresh_uri, "--rebuild", "--json"))

        async def seen(archive: SweepArchive) -> bool:
            return await archive.live() == archive.names("used", "unused", "orphan")

        row = namespace_row(document)
        assert (row["adopted_chunks"], row["folders"], document["exit_code"]) == (3, 256, 0)
        assert with_archive(endpoint, fresh_uri, seen)
        after = everything(endpoint, fresh_uri)
        assert {key: after[key] for key in before} == before

    def test_people_are_told_what_it_did(self, moto_endpoint: str, fresh_uri: str) -> None:
        archive = with_archive(moto_endpoint, fresh_uri, used_and_unused)

        result = s3kv(moto_endpoint, "doctor", fresh_uri, "--rebuild", archive.id[:6])

        assert result.exit_code == 0
        assert result.stdout.splitlines()[2].split() == [archive.id[:12], "256", "1", "0"]
        assert "Nothing was deleted." in result.stdout

    def test_a_namespace_belongs_to_the_rebuild(self, moto_endpoint: str, fresh_uri: str) -> None:
        result = s3kv(moto_endpoint, "doctor", fresh_uri, "0123")

        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("s3kv: NAMESPACE='0123': only --rebuild")

    def test_nothing_to_rebuild_is_said(self, moto_endpoint: str, fresh_uri: str) -> None:
        result = s3kv(moto_endpoint, "doctor", fresh_uri, "--rebuild")

        assert result.exit_code == 2
        assert "no archive under this prefix" in result.stderr


def test_a_sweep_of_nothing_is_no_failure(endpoint: str, fresh_uri: str) -> None:
    result = s3kv(endpoint, "sweep", fresh_uri, "--yes")

    assert result.exit_code == 0
    assert f"no archive under {fresh_uri}" in result.stdout


def test_a_missing_bucket_is_unusable(endpoint: str) -> None:
    result = s3kv(endpoint, "sweep", "s3://s3kv-missing-sweep/prefix", "--json")

    assert result.exit_code == 2
    assert "NoSuchBucket" in result.stdout
