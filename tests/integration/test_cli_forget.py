"""`s3kv forget` on real servers: what is forgotten is gone in every version, the rest stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from s3kv.bucket.base import ObjectStore
from s3kv.core.ids import fingerprints
from s3kv.core.keys import data_prefix, set_key
from s3kv.core.pinset import encode_set, make_set
from tests.bucket.stores import uploads_by, versioned_uri
from tests.fakes.prompt_archive import PromptArchive, namespace_of, prompt_of, token_ids
from tests.fakes.small_archive import TIMEOUT_S
from tests.integration.test_cli_store import (
    document_of,
    keys_under,
    s3kv,
    uploads_under,
    with_store,
)

pytestmark = pytest.mark.timeout(60)

IDS = token_ids(10, seed=1)
"""Two full chunks of 64 tokens, a tail of 32, and 5 tokens more."""
PROMPT = prompt_of(IDS)
SIBLING = prompt_of([*IDS[:64], *token_ids(6, seed=2)])
"""Begins with the same full chunk, a system prompt."""


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


@pytest.fixture
def uri(endpoint: str) -> str:
    """A fresh prefix of a bucket that keeps versions."""
    return versioned_uri(endpoint)


def file_of(folder: Path, ids: Sequence[int]) -> str:
    path = folder / f"{len(ids)}.json"
    path.write_text(json.dumps(list(ids)))
    return str(path)


def forget(endpoint_url: str, uri: str, *arguments: str) -> tuple[dict[str, Any], Result]:
    result = s3kv(endpoint_url, "forget", uri, *arguments, "--json")
    return document_of(result), result


def versions_under(endpoint_url: str, uri: str, prefix: str) -> list[str]:
    """Keys of all versions and delete markers."""

    async def versions(store: ObjectStore) -> list[str]:
        pages = store.list_versions(prefix, timeout_s=TIMEOUT_S)
        return sorted([each.key async for page in pages for each in page])

    return with_store(endpoint_url, uri, versions)


async def save_both(store: ObjectStore) -> PromptArchive:
    """Twice, so that there are older versions; one shard deleted as people do, so a marker."""
    archive = PromptArchive(store)
    await archive.save(SIBLING)
    derived = await archive.save(PROMPT)
    await archive.save(PROMPT)
    await archive.delete(derived.chunks[2])
    return archive


def begin(endpoint_url: str, uri: str, key: str) -> None:
    """Leave an unfinished upload behind."""

    async def upload(store: ObjectStore) -> None:
        await uploads_by(endpoint_url, uri)(key)

    with_store(endpoint_url, uri, upload)


def listed(endpoint_url: str, uri: str, hashes: Sequence[bytes]) -> list[bool]:
    """What a fresh reader's index has."""

    async def read(store: ObjectStore) -> list[bool]:
        tool = await PromptArchive(store).tool()
        return [bool(there) for there in tool.snapshot.present(fingerprints(hashes))]

    return with_store(endpoint_url, uri, read)


def test_a_prompt_is_gone_in_every_version_and_the_rest_stays(
    endpoint: str, uri: str, tmp_path: Path
) -> None:
    archive = with_store(endpoint, uri, save_both)
    ns, mine, other = archive.namespace.id, archive.derived(PROMPT), archive.derived(SIBLING)
    begun = archive.key(mine.chunks[1])
    begin(endpoint, uri, begun)

    document, result = forget(endpoint, uri, "--token-ids", file_of(tmp_path, IDS), "--yes")

    (target,) = document["namespaces"]
    assert (result.exit_code, target["gone"], target["left"]) == (0, True, [])
    assert (target["chunks"], target["tokens"], target["unfinished_uploads"]) == (3, 160, 1)
    others_own = sorted(archive.key(chunk) for chunk in other.chunks[1:])
    assert versions_under(endpoint, uri, data_prefix(ns)) == others_own
    hashes = [chunk.chunk_hash for chunk in (*mine.chunks, *other.chunks[1:])]
    assert listed(endpoint, uri, hashes) == [False, False, False, True, True]
    assert uploads_under(endpoint, uri) == []
    again, _ = forget(endpoint, uri, "--token-ids", file_of(tmp_path, IDS))
    assert again["namespaces"][0]["objects"] == 0


def test_without_yes_nothing_changes_and_the_price_is_told(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    with_store(moto_endpoint, fresh_uri, save_both)
    before = keys_under(moto_endpoint, fresh_uri)
    given = ("--token-ids", file_of(tmp_path, IDS))

    document, _ = forget(moto_endpoint, fresh_uri, *given)
    shown = s3kv(moto_endpoint, "forget", fresh_uri, *given)

    (target,) = document["namespaces"]
    assert (document["exit_code"], document["dry_run"], target["gone"]) == (0, True, None)
    assert (target["chunks"], target["tokens"]) == (2, 128)
    assert keys_under(moto_endpoint, fresh_uri) == before
    assert "would go" in shown.stdout
    assert "nothing was deleted; with --yes it is" in shown.stdout
    assert "saves are not paused" in shown.stdout


def test_tails_of_shorter_prompts_and_quarantined_shards_go_too(
    endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    async def save(store: ObjectStore) -> PromptArchive:
        archive = PromptArchive(store)
        await archive.save(prompt_of(IDS[: 7 * 16]))
        derived = await archive.save(PROMPT)
        await archive.quarantine(derived.chunks[1])
        return archive

    archive = with_store(endpoint, fresh_uri, save)

    document, _ = forget(endpoint, fresh_uri, "--token-ids", file_of(tmp_path, IDS), "--yes")

    (target,) = document["namespaces"]
    assert (target["chunks"], target["tokens"], target["gone"]) == (4, 160, True)
    for prefix in ("data/", "quarantine/"):
        assert versions_under(endpoint, fresh_uri, f"{archive.namespace.id}/{prefix}") == []


def test_what_another_prompt_shares_can_be_kept(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    archive = with_store(moto_endpoint, fresh_uri, save_both)
    shared = file_of(tmp_path, IDS[:64])
    given = ("--token-ids", file_of(tmp_path, IDS), "--keep-shared-with", shared, "--yes")

    document, _ = forget(moto_endpoint, fresh_uri, *given)

    (target,) = document["namespaces"]
    assert (target["chunks"], target["tokens"], target["gone"]) == (1, 64, True)
    kept = [archive.key(chunk) for chunk in archive.derived(SIBLING).chunks]
    left = versions_under(moto_endpoint, fresh_uri, data_prefix(archive.namespace.id))
    assert left == sorted(kept)


def test_a_prompt_is_forgotten_in_every_namespace_and_salts_are_told_apart(
    seaweed_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    first, second = namespace_of(), namespace_of(label="b", chunk_tokens=32)
    salted = prompt_of(IDS, salt="tenant-a")

    async def save(store: ObjectStore) -> list[str]:
        for namespace in (first, second):
            await PromptArchive(store, namespace).save(salted)
        archive = PromptArchive(store, first)
        return [archive.key(chunk) for chunk in (await archive.save(PROMPT)).chunks]

    kept = with_store(seaweed_endpoint, fresh_uri, save)
    given = ("--token-ids", file_of(tmp_path, IDS), "--salt", "tenant-a", "--yes")

    document, _ = forget(seaweed_endpoint, fresh_uri, *given)

    assert [target["gone"] for target in document["namespaces"]] == [True, True]
    left = [key for key in keys_under(seaweed_endpoint, fresh_uri) if "/data/" in key]
    assert left == sorted(kept)


def test_chunks_can_be_named_by_their_hashes(
    seaweed_endpoint: str, fresh_uri: str, tmp_path: Path
) -> None:
    archive = with_store(seaweed_endpoint, fresh_uri, save_both)
    chunks = archive.derived(PROMPT).chunks
    path = tmp_path / "hashes"
    path.write_text(f"{chunks[1].chunk_hash.hex()}\n")

    document, _ = forget(seaweed_endpoint, fresh_uri, "--hashes", str(path), "--yes")

    (target,) = document["namespaces"]
    assert (target["chunks"], target["tokens"], target["gone"]) == (1, None, True)
    assert archive.key(chunks[0]) in keys_under(seaweed_endpoint, fresh_uri)


def test_a_whole_namespace_goes_and_foreign_objects_and_other_namespaces_stay(
    endpoint: str, uri: str
) -> None:
    doomed, other = namespace_of(), namespace_of(label="other")

    async def save(store: ObjectStore) -> None:
        for namespace in (doomed, other):
            archive = PromptArchive(store, namespace)
            derived = await archive.save(PROMPT)
            await archive.save(PROMPT)
            await archive.quarantine(derived.chunks[2])
            await archive.leave_in_inbox(derived.chunks[:1])
        await store.put(f"{doomed.id}/notes.txt", b"mine", timeout_s=TIMEOUT_S)

    with_store(endpoint, uri, save)
    kept = versions_under(endpoint, uri, f"{other.id}/")

    document, result = forget(endpoint, uri, "--all", "--namespace", doomed.id, "--yes")

    (target,) = document["namespaces"]
    assert (result.exit_code, target["gone"]) == (0, True)
    assert target["foreign"] == {"objects": 1, "names": [f"{doomed.id}/notes.txt"]}
    assert versions_under(endpoint, uri, f"{doomed.id}/") == [f"{doomed.id}/notes.txt"]
    assert versions_under(endpoint, uri, f"{other.id}/") == kept


@pytest.mark.parametrize("is_all", [True, False])
def test_pinned_chunks_are_refused_unless_they_are_meant(
    moto_endpoint: str, fresh_uri: str, tmp_path: Path, is_all: bool
) -> None:
    async def save(store: ObjectStore) -> None:
        archive = PromptArchive(store)
        derived = await archive.save(PROMPT)
        ns = archive.namespace.id
        pinned = make_set(ns, "keep", {derived.chunks[0].chunk_hash: 4})
        await store.put(set_key(ns, "keep"), encode_set(pinned), timeout_s=TIMEOUT_S)

    with_store(moto_endpoint, fresh_uri, save)
    before = keys_under(moto_endpoint, fresh_uri)
    given = ["--all"] if is_all else ["--token-ids", file_of(tmp_path, IDS)]

    refused = s3kv(moto_endpoint, "forget", fresh_uri, *given, "--yes")
    after = keys_under(moto_endpoint, fresh_uri)
    document, _ = forget(moto_endpoint, fresh_uri, *given, "--including-pinned", "--yes")

    assert refused.exit_code == 2
    assert "--including-pinned" in refused.stderr
    assert "1 of these chunks are pinned" in refused.stderr
    assert after == before
    assert document["namespaces"][0]["gone"]
    assert any("/sets/keep" in key for key in keys_under(moto_endpoint, fresh_uri)) is not is_all


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--prompt-file=None: nothing to forget is named"),
        (["--salt", "tenant-a"], "--salt='tenant-a': a salt exists only inside hashes"),
        (["--adapter", "sql-lora"], "--adapter='sql-lora': requests with adapters are never"),
        (["--all", "--token-ids", "-"], "--prompt-file=None: --all is given too"),
        (["--all", "--keep-shared-with", "x"], "--keep-shared-with='x': only a prompt"),
        (["--hashes", "nowhere"], "--hashes='nowhere': No such file"),
    ],
)
def test_bad_input_is_one_line(
    moto_endpoint: str, fresh_uri: str, arguments: Sequence[str], named: str
) -> None:
    result = s3kv(moto_endpoint, "forget", fresh_uri, *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"s3kv: {named}")
