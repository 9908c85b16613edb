"""`s3kv explain` on real servers: each way in which a prompt is not there, made and named."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from s3kv.bucket.base import ObjectStore
from s3kv.cli.bounds_view import default_pace
from s3kv.core.bounds import staleness
from s3kv.core.forgetting import Limits
from s3kv.core.keys import namespace_key
from s3kv.core.sequencer import SequencerSettings
from tests.fakes.prompt_archive import (
    MIN_TAIL_TOKENS,
    PromptArchive,
    namespace_of,
    prompt_of,
    token_ids,
)
from tests.fakes.small_archive import TIMEOUT_S
from tests.integration.test_cli_store import document_of, keys_under, s3kv, with_store

pytestmark = pytest.mark.timeout(60)

IDS = token_ids(10, seed=1)
"""Two full chunks of 64 tokens, a tail of 32, and 5 tokens more."""
PROMPT = prompt_of(IDS)
QUIET_S = math.ceil(staleness(default_pace()).quiet_worst_s)


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


@pytest.fixture
def ids_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps(IDS))
    return path


def arguments_for(uri: str, path: Path, *more: str) -> list[str]:
    given = ["explain", uri, "--token-ids", str(path)]
    return [*given, "--min-tail-tokens", str(MIN_TAIL_TOKENS), *more]


def explained(endpoint_url: str, uri: str, path: Path, *more: str) -> dict[str, Any]:
    return document_of(s3kv(endpoint_url, *arguments_for(uri, path, *more), "--json"))


def words_of(endpoint_url: str, uri: str, path: Path, *more: str) -> Result:
    """The same, for people."""
    return s3kv(endpoint_url, *arguments_for(uri, path, *more))


def states(document: dict[str, Any]) -> list[str]:
    return [chunk["state"] for chunk in document["chunks"]]


def test_a_whole_prompt_is_there_and_nothing_is_written(
    endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    async def save(store: ObjectStore) -> str:
        archive = PromptArchive(store)
        await archive.save(PROMPT)
        return archive.namespace.id

    ns = with_store(endpoint, fresh_uri, save)
    before = keys_under(endpoint, fresh_uri)

    document = explained(endpoint, fresh_uri, ids_file)

    assert document["exit_code"] == 0
    assert (document["namespace"], document["tokens"], document["hit_tokens"]) == (ns, 165, 160)
    assert states(document) == ["present"] * 3
    assert [(c["start_token"], c["end_token"]) for c in document["chunks"]] == [
        (0, 64),
        (64, 128),
        (128, 160),
    ]
    assert document["first_missing"] is None
    assert document["miss_reason"] is None
    assert keys_under(endpoint, fresh_uri) == before


def test_people_see_a_table_and_the_conclusion(
    moto_endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    async def save(store: ObjectStore) -> None:
        archive = PromptArchive(store)
        derived = await archive.save(PROMPT)
        await archive.delete(derived.chunks[1])

    with_store(moto_endpoint, fresh_uri, save)

    shown = words_of(moto_endpoint, fresh_uri, ids_file)

    title, *rows, gets, missing = shown.stdout.splitlines()
    assert shown.exit_code == 1
    assert title.split() == ["tokens", "chunk", "index", "shards", "age", "state"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [
        ("0-64", "present"),
        ("64-128", "gone"),
        ("128-160", "present"),
    ]
    assert gets.endswith("an engine gets 64 of 165 tokens from the archive")
    assert missing.startswith("first missing: tokens 64-128, gone: listed, but its shards are gone")


Deed = Callable[[PromptArchive], Awaitable[None]]


async def never_saved(archive: PromptArchive) -> None:
    await archive.save(prompt_of(IDS[:70]))


async def expired(archive: PromptArchive) -> None:
    derived = archive.derived(PROMPT)
    await archive.save(prompt_of(IDS[:70]))
    await archive.upload(derived, derived.chunks[1])
    await archive.announce(derived.chunks[1:2], age_s=7_200)
    tool = await archive.tool(SequencerSettings(limits=Limits(ttl_s=3_600)))
    await tool.sequence()
    assert tool.snapshot.watermark_s > 0


async def lost(archive: PromptArchive) -> None:
    derived = await archive.save(PROMPT)
    await archive.announce(derived.chunks[1:2], dead=True)


async def deleted_behind_our_back(archive: PromptArchive) -> None:
    derived = await archive.save(PROMPT)
    await archive.delete(derived.chunks[1])


async def truncated(archive: PromptArchive) -> None:
    derived = await archive.save(PROMPT)
    chunk = derived.chunks[1]
    await archive.store.put(
        archive.key(chunk), archive.shard(derived, chunk)[:-1], timeout_s=TIMEOUT_S
    )


async def quarantined(archive: PromptArchive) -> None:
    derived = await archive.save(PROMPT)
    await archive.quarantine(derived.chunks[1])
    await archive.announce(derived.chunks[1:2], dead=True)


async def unannounced(archive: PromptArchive) -> None:
    derived = archive.derived(PROMPT)
    await archive.save(prompt_of(IDS[:70]))
    await archive.upload(derived, derived.chunks[1])


@pytest.mark.parametrize(
    ("deed", "state", "words"),
    [
        (never_saved, "absent", "never saved here"),
        (expired, "expired", "forgotten by age"),
        (lost, "lost", "reported gone or wrong"),
        (deleted_behind_our_back, "gone", "deleted from outside"),
        (truncated, "misshapen", "(rank 0 of 1)"),
        (quarantined, "quarantined", "set aside (rank 0 of 1)"),
        (unannounced, "unannounced", f"others hear of that within {QUIET_S} s"),
    ],
)
def test_the_first_missing_chunk_is_named_with_its_reason(
    seaweed_endpoint: str, fresh_uri: str, ids_file: Path, deed: Deed, state: str, words: str
) -> None:
    with_store(seaweed_endpoint, fresh_uri, lambda store: _done(deed, PromptArchive(store)))

    document = explained(seaweed_endpoint, fresh_uri, ids_file)

    assert document["exit_code"] == 1
    assert states(document)[:2] == ["present", state]
    first = document["first_missing"]
    assert (first["start_token"], first["end_token"], first["state"]) == (64, 128, state)
    assert words in first["why"]
    assert document["hit_tokens"] == 64


async def _done(deed: Deed, archive: PromptArchive) -> None:
    await deed(archive)


def test_a_rank_that_is_missing_is_named(endpoint: str, fresh_uri: str, ids_file: Path) -> None:
    async def save(store: ObjectStore) -> None:
        archive = PromptArchive(store, namespace_of(rank_count=4))
        derived = await archive.save(PROMPT)
        await archive.delete(derived.chunks[0], rank=2)

    with_store(endpoint, fresh_uri, save)

    document = explained(endpoint, fresh_uri, ids_file)

    assert (document["exit_code"], document["hit_tokens"]) == (1, 0)
    assert document["first_missing"]["missing"] == [2]
    assert document["miss_reason"] == "load_failed"
    assert document["first_missing"]["why"].endswith("ranks are missing (rank 2 of 4)")


def test_what_waits_in_the_inbox_is_there_but_not_for_everybody_yet(
    endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    async def save(store: ObjectStore) -> None:
        archive = PromptArchive(store)
        derived = await archive.save(prompt_of(IDS[:130]))
        await archive.upload(archive.derived(PROMPT), archive.derived(PROMPT).chunks[2])
        assert len(derived.chunks) == 2
        await archive.leave_in_inbox(archive.derived(PROMPT).chunks[2:])

    with_store(endpoint, fresh_uri, save)

    document = explained(endpoint, fresh_uri, ids_file)

    assert (document["exit_code"], document["hit_tokens"]) == (0, 160)
    assert states(document) == ["present", "present", "waiting"]
    shown = words_of(endpoint, fresh_uri, ids_file)
    assert f"engines that run hear of it within {QUIET_S} s" in shown.stdout


def test_another_namespace_is_told_with_the_fields_in_which_it_differs(
    endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    here, there = namespace_of(), namespace_of(weights="mine", chunk_tokens=32)

    async def save(store: ObjectStore) -> None:
        await PromptArchive(store, here).save(prompt_of(token_ids(4, seed=2)))
        await PromptArchive(store, there).save(PROMPT)

    with_store(endpoint, fresh_uri, save)

    found = explained(endpoint, fresh_uri, ids_file)
    document = explained(endpoint, fresh_uri, ids_file, "--namespace", here.id[:8])
    shown = words_of(endpoint, fresh_uri, ids_file, "--namespace", here.id[:8])

    assert (found["exit_code"], found["namespace"], found["elsewhere"]) == (0, there.id, [])
    assert (document["exit_code"], document["namespace"]) == (1, here.id)
    assert states(document)[0] == "absent"
    (other,) = document["elsewhere"]
    assert (other["namespace"], other["listed_tokens"]) == (there.id, 160)
    assert other["differing_fields"] == [
        {"field": "chunk_tokens", "there": "32", "here": "64"},
        {"field": "weights", "there": '"mine"', "here": json.dumps(here.fields.weights)},
    ]
    assert f"namespace {there.id[:12]} has 160 tokens of it and differs in:" in shown.stdout


def test_a_salt_leads_to_other_chunks(
    seaweed_endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    async def save(store: ObjectStore) -> None:
        await PromptArchive(store).save(prompt_of(IDS, salt="tenant-a"))

    with_store(seaweed_endpoint, fresh_uri, save)

    assert explained(seaweed_endpoint, fresh_uri, ids_file, "--salt", "tenant-a")["exit_code"] == 0
    document = explained(seaweed_endpoint, fresh_uri, ids_file)
    assert states(document) == ["absent"] * 3
    assert document["miss_reason"] == "absent"


def test_the_tail_of_a_shorter_prompt_bridges_into_the_missing_chunk(
    seaweed_endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    async def save(store: ObjectStore) -> None:
        await PromptArchive(store).save(prompt_of(IDS[: 7 * 16]))

    with_store(seaweed_endpoint, fresh_uri, save)

    document = explained(seaweed_endpoint, fresh_uri, ids_file)

    assert (document["exit_code"], document["hit_tokens"]) == (1, 112)
    rows = [(c["end_token"], c["own"], c["state"]) for c in document["chunks"]]
    assert rows == [
        (64, True, "present"),
        (112, False, "present"),
        (128, True, "absent"),
        (160, True, "absent"),
    ]


def test_a_namespace_that_cannot_be_read_is_named(
    seaweed_endpoint: str, fresh_uri: str, ids_file: Path
) -> None:
    other = namespace_of(label="other")

    async def save(store: ObjectStore) -> None:
        archive = PromptArchive(store)
        await archive.save(PROMPT)
        await store.put(namespace_key(other.id), b"{}", timeout_s=TIMEOUT_S)

    with_store(seaweed_endpoint, fresh_uri, save)

    document = explained(seaweed_endpoint, fresh_uri, ids_file)
    assert (document["exit_code"], list(document["unread"])) == (0, [other.id])
    assert (
        f"{other.id[:12]}: NAMESPACE.json" in words_of(seaweed_endpoint, fresh_uri, ids_file).stdout
    )
    named = s3kv(
        seaweed_endpoint,
        "explain",
        fresh_uri,
        "--token-ids",
        str(ids_file),
        "--namespace",
        other.id,
    )
    assert named.exit_code == 2
    assert "NAMESPACE.json" in named.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--prompt-file=None"),
        (["--prompt-file", "p.txt"], "--model=None"),
        (["--token-ids", "nowhere.json"], "--token-ids='nowhere.json'"),
        (["--token-ids", "-", "--prompt-file", "-"], "--token-ids='-'"),
    ],
)
def test_bad_input_is_one_line(
    moto_endpoint: str, fresh_uri: str, arguments: Sequence[str], named: str
) -> None:
    result = s3kv(moto_endpoint, "explain", fresh_uri, *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"s3kv: {named}: ")
