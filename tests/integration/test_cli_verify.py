"""`s3kv verify` on real servers: what it finds, what it sets aside, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.core.keys import namespace_key, parse_shard_key, quarantine_key
from tests.fakes.small_archive import GEOMETRY, SmallArchive
from tests.fakes.verify_archive import flipped
from tests.integration.test_cli_store import archive_at, document_of, keys_under, s3kv, with_store
from tests.servers import READER

pytestmark = pytest.mark.timeout(60)

READER_KEYS = {
    "AWS_ACCESS_KEY_ID": READER.access_key,
    "AWS_SECRET_ACCESS_KEY": READER.secret_key,
}


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


def body_of(endpoint_url: str, uri: str, key: str) -> bytes:
    async def get(store: ObjectStore) -> bytes:
        body = await store.get(key, max_bytes=1 << 20, timeout_s=5.0)
        assert isinstance(body, bytes)
        return body

    return with_store(endpoint_url, uri, get)


def put(endpoint_url: str, uri: str, key: str, body: bytes) -> None:
    async def write(store: ObjectStore) -> None:
        await store.put(key, body, timeout_s=5.0)

    with_store(endpoint_url, uri, write)


def damage(endpoint_url: str, uri: str, archive: SmallArchive) -> dict[str, str]:
    """A harm for each shard of the archive. Returns what is wrong with which."""
    header, body, length = archive.shard_keys
    bodies = {key: body_of(endpoint_url, uri, key) for key in archive.shard_keys}
    put(endpoint_url, uri, header, flipped(bodies[header], 300))
    put(endpoint_url, uri, body, flipped(bodies[body], GEOMETRY.header_bytes + 3))
    put(endpoint_url, uri, length, bodies[length] + b"x")
    return {header: "header", body: "checksum", length: "size"}


def found_in(document: dict[str, Any], what: str = "wrong") -> dict[str, str]:
    return {shard["key"]: shard[what] for shard in document["shards"]}


def quarantined(key: str) -> str:
    name = parse_shard_key(key)
    assert name is not None
    return quarantine_key(name.namespace, name.chunk_hash, name.writer_index, name.writer_count)


@pytest.mark.parametrize("depth", [[], ["--deep"]])
def test_a_good_archive_is_good_and_stays_as_it_is(
    endpoint: str, fresh_uri: str, depth: list[str]
) -> None:
    archive = archive_at(endpoint, fresh_uri)
    before = keys_under(endpoint, fresh_uri)

    document = document_of(s3kv(endpoint, "verify", fresh_uri, "--yes", "--json", *depth))

    assert document["exit_code"] == 0
    assert document["namespace"] == archive.namespace.id
    assert (document["listed"], document["checked"], document["good"]) == (3, 3, 3)
    assert document["listed_bytes"] == archive.shard_bytes
    assert document["bad"] == {}
    assert document["chunks"]["live_without_shards"] == document["chunks"]["unlisted"] == 0
    whole = archive.shard_bytes if depth else 3 * GEOMETRY.header_bytes
    assert document["read_bytes"] >= whole
    assert document["requests"]["list"] >= 3
    assert document["usd"] > 3 * 5e-6
    assert keys_under(endpoint, fresh_uri) == before


def test_damage_is_found_and_nothing_is_changed_without_yes(endpoint: str, fresh_uri: str) -> None:
    archive = archive_at(endpoint, fresh_uri)
    harms = damage(endpoint, fresh_uri, archive)
    before = keys_under(endpoint, fresh_uri)

    deep = document_of(s3kv(endpoint, "verify", fresh_uri, "--deep", "--json"))
    shallow = document_of(s3kv(endpoint, "verify", fresh_uri, "--json"))

    assert deep["exit_code"] == shallow["exit_code"] == 1
    assert found_in(deep) == harms
    assert found_in(shallow) == {key: w for key, w in harms.items() if w != "checksum"}
    assert set(found_in(deep, "fate").values()) == {"reported"}
    assert keys_under(endpoint, fresh_uri) == before


def test_with_yes_bad_shards_are_set_aside_and_known_dead(endpoint: str, fresh_uri: str) -> None:
    archive = archive_at(endpoint, fresh_uri)
    harms = damage(endpoint, fresh_uri, archive)
    bodies = {key: body_of(endpoint, fresh_uri, key) for key in harms}
    put(endpoint, fresh_uri, f"{archive.namespace.id}/data/README", b"mine")

    document = document_of(s3kv(endpoint, "verify", fresh_uri, "--deep", "--yes", "--json"))

    assert document["exit_code"] == 1
    assert found_in(document, "fate") == dict.fromkeys(harms, "quarantined")
    assert document["chunks"]["reported_dead"] == 3
    left = keys_under(endpoint, fresh_uri)
    assert not set(harms) & set(left)
    assert f"{archive.namespace.id}/data/README" in left
    for key, body in bodies.items():
        assert body_of(endpoint, fresh_uri, quarantined(key)) == body
    assert document_of(s3kv(endpoint, "stat", fresh_uri, "--json"))["index"]["live_records"] == 0
    again = document_of(s3kv(endpoint, "verify", fresh_uri, "--json"))
    assert (again["exit_code"], again["checked"]) == (0, 0)


def test_people_see_what_is_wrong_and_what_it_cost(moto_endpoint: str, fresh_uri: str) -> None:
    archive = archive_at(moto_endpoint, fresh_uri)
    damage(moto_endpoint, fresh_uri, archive)

    result = s3kv(moto_endpoint, "verify", fresh_uri, "--deep")

    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert f"namespace {archive.namespace.id}: every byte of all shards" in words
    assert "bad 3 (" in words
    assert "block 0 of group 0 is damaged" in words
    assert "nothing was changed" in words
    assert " LIST" in words
    assert "about $0.00" in words
    for key in archive.shard_keys:
        assert key.partition("/data/")[2] in words


def test_what_the_index_lists_and_the_bucket_has_not_is_told(endpoint: str, fresh_uri: str) -> None:
    archive = archive_at(endpoint, fresh_uri)

    async def lose(store: ObjectStore) -> None:
        await store.delete(archive.shard_keys[:1], timeout_s=5.0)

    with_store(endpoint, fresh_uri, lose)
    told = document_of(s3kv(endpoint, "verify", fresh_uri, "--json"))
    mended = document_of(s3kv(endpoint, "verify", fresh_uri, "--yes", "--json"))
    after = document_of(s3kv(endpoint, "verify", fresh_uri, "--json"))

    chunks = [each["chunks"] for each in (told, mended, after)]
    assert [each["live_without_shards"] for each in chunks] == [1, 1, 0]
    assert [each["reported_dead"] for each in chunks] == [0, 1, 0]
    assert [each["exit_code"] for each in (told, mended, after)] == [1, 1, 0]


def test_a_sample_looks_into_so_many_and_can_be_repeated(endpoint: str, fresh_uri: str) -> None:
    archive = archive_at(endpoint, fresh_uri)
    for key in archive.shard_keys:
        put(endpoint, fresh_uri, key, b"no shard at all")

    first = document_of(s3kv(endpoint, "verify", fresh_uri, "--sample", "2", "--json"))
    seed = str(first["seed"])
    again = document_of(
        s3kv(endpoint, "verify", fresh_uri, "--sample", "2", "--seed", seed, "--json")
    )

    assert (first["listed"], first["checked"], first["exit_code"]) == (3, 2, 1)
    assert found_in(first) == found_in(again)


def test_a_reader_can_look_and_is_told_that_it_may_not_set_aside(
    seaweed_endpoint: str, fresh_uri: str
) -> None:
    archive = archive_at(seaweed_endpoint, fresh_uri)
    damage(seaweed_endpoint, fresh_uri, archive)
    before = keys_under(seaweed_endpoint, fresh_uri)

    looked = s3kv(
        seaweed_endpoint, "verify", fresh_uri, "--deep", "--json", environment=READER_KEYS
    )
    refused = s3kv(seaweed_endpoint, "verify", fresh_uri, "--yes", environment=READER_KEYS)

    assert len(found_in(document_of(looked))) == 3
    assert (refused.exit_code, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert "AccessDenied" in line or "denied" in line.lower()
    assert keys_under(seaweed_endpoint, fresh_uri) == before


def test_a_killed_one_goes_on_where_it_was(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    archive = archive_at(moto_endpoint, fresh_uri)
    harms = damage(moto_endpoint, fresh_uri, archive)
    state = tmp_path / "state.json"
    given = ["verify", fresh_uri, "--deep", "--state", str(state), "--json"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from s3kv.cli import main; main()"),
            *(*given, "--endpoint-url", moto_endpoint),
        ],
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    try:
        deadline_s = time.monotonic() + 30
        while not state.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait(10)

    document = document_of(s3kv(moto_endpoint, *given))

    assert found_in(document) == harms
    assert json.loads(state.read_text())["done"] is True
    assert list(tmp_path.iterdir()) == [state]


def test_a_state_of_something_else_is_refused(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    archive_at(moto_endpoint, fresh_uri)
    state = str(tmp_path / "state.json")
    assert s3kv(moto_endpoint, "verify", fresh_uri, "--state", state).exit_code == 0

    result = s3kv(moto_endpoint, "verify", fresh_uri, "--deep", "--state", state)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "mode headers, not every byte" in line


def test_a_state_that_cannot_be_written_is_told_before_the_work(
    moto_endpoint: str, fresh_uri: str
) -> None:
    archive_at(moto_endpoint, fresh_uri)

    result = s3kv(moto_endpoint, "verify", fresh_uri, "--state", "/no/such/folder/state")

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "cannot be written" in line


def test_a_namespace_without_its_document_cannot_be_verified(
    moto_endpoint: str, fresh_uri: str
) -> None:
    archive = archive_at(moto_endpoint, fresh_uri)

    async def lose(store: ObjectStore) -> None:
        await store.delete([namespace_key(archive.namespace.id)], timeout_s=5.0)

    with_store(moto_endpoint, fresh_uri, lose)
    result = s3kv(moto_endpoint, "verify", fresh_uri)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no NAMESPACE.json" in result.stderr
