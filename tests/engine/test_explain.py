"""What an engine archived is explained as there, and gone for it when forgotten (real engine)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from s3kv.cli import app
from tests.engine.fixtures_lifecycle import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Archive,
    Engine,
    prompt_of,
    settle,
    wait_until,
)

pytestmark = ENGINE_MARKS

TAIL_TOKENS = BLOCK_TOKENS
TOKENS = 2 * CHUNK_TOKENS + TAIL_TOKENS + 7


def command(archive: Archive, name: str, path: Path, *more: str) -> dict[str, Any]:
    """The document of a command about the prompt in a file."""
    given = [name, f"s3://{archive.bucket}/{archive.prefix}", "--token-ids", str(path)]
    given += ["--endpoint-url", archive.endpoint_url, "--addressing-style", "path"]
    given += ["--min-tail-tokens", str(BLOCK_TOKENS), "--json", *more]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["exit_code"] == result.exit_code
    return document


def test_what_an_engine_saves_is_explained_and_forgotten_by_the_same_names(
    shared: Engine, shared_archive: Archive, tmp_path: Path
) -> None:
    prompt, path = prompt_of(TOKENS, seed=90), tmp_path / "prompt.json"
    path.write_text(json.dumps(prompt))
    shared.ask(prompt)
    settle(shared)
    wait_until(
        lambda: command(shared_archive, "explain", path)["exit_code"] == 0, "the save is committed"
    )

    present = command(shared_archive, "explain", path)
    salted = command(shared_archive, "explain", path, "--salt", "tenant-a")
    shared.forget_local()
    hit = shared.ask(prompt)

    assert present["hit_tokens"] == hit.hit_tokens == 2 * CHUNK_TOKENS + TAIL_TOKENS
    assert (salted["exit_code"], salted["miss_reason"]) == (1, "absent")

    forgotten = command(shared_archive, "forget", path, "--yes")
    settle(shared)
    shared.forget_local()
    missed = shared.ask(prompt)

    assert [target["gone"] for target in forgotten["namespaces"]] == [True]
    assert missed.hit_tokens == 0
    assert missed.token_ids == hit.token_ids
    assert missed.report["miss_reason"] in ("lost", "load_failed")
