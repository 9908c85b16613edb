"""Which chunks a user names, and what is said of bad input."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.pin_options import PinOptions
from s3kv.cli.pin_source import Source, parse_hashes, read_hashes
from s3kv.cli.pinning import pin
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.chunking import chunk_blocks_for
from s3kv.core.pinset import SET_CHUNKS_MAX
from s3kv.errors import ConfigError
from tests.fakes.small_archive import BLOCK_TOKENS, CHUNK_TOKENS, small_namespace

A, B = (hashlib.sha256(name).digest() for name in (b"a", b"b"))
NO_PROMPT = PromptOptions()


def source_of(hashes: str | None = None, prompt: PromptOptions = NO_PROMPT) -> Source:
    return Source(hashes, prompt, adds=False)


def test_hashes_are_read_one_a_line_each_once_in_their_order() -> None:
    text = f"{B.hex()}\n\n  {A.hex()}  \r\n{B.hex()}"

    assert parse_hashes("f", text, "halve it") == [B, A]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no chunk hash in it"),
        ("\n \n", "no chunk hash in it"),
        (f"{A.hex()}\nxyz", "line 2 is no chunk hash: 'xyz'"),
        (A.hex().upper(), "line 1 is no chunk hash"),
        (A.hex()[:-1], "line 1 is no chunk hash"),
        (A.hex() + "0", "line 1 is no chunk hash"),
        (f"{A.hex()} {B.hex()}", "line 1 is no chunk hash"),
        ("\x1b[31m", "line 1 is no chunk hash"),
    ],
)
def test_anything_else_is_told_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="--hashes") as caught:
        parse_hashes("f", text, "halve it")

    assert says in caught.value.problem
    assert "\x1b" not in str(caught.value)


def test_more_than_a_set_can_hold_is_refused() -> None:
    text = "\n".join(f"{i:064x}" for i in range(SET_CHUNKS_MAX + 1))

    with pytest.raises(ConfigError, match=f"at most {SET_CHUNKS_MAX} .*; halve it"):
        parse_hashes("f", text, "halve it")


def test_hashes_come_from_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hashes"
    file.write_text(A.hex() + "\n", "ascii")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(B.hex().encode())))

    for path, expected in ((str(file), A), ("-", B)):
        source = source_of(path)
        source.read()
        assert source.chunks(small_namespace()) == [expected]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_bad_input(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "hashes"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match="--hashes") as refused:
        read_hashes(str(file), "halve it")
    wants = "name a file" if content is None else "write 64 lower-case hex digits a line"
    assert refused.value.remedy.startswith(wants)


def test_more_hashes_than_at_a_time_are_pinned_in_parts(tmp_path: Path) -> None:
    file = tmp_path / "hashes"
    file.write_text("\n".join(f"{i:064x}" for i in range(SET_CHUNKS_MAX + 1)), "ascii")

    with pytest.raises(ConfigError, match="pin them in parts, with --add"):
        source_of(str(file)).read()


@pytest.mark.parametrize(
    ("details", "field"),
    [
        ({"model": "m"}, "--model"),
        ({"chat": True}, "--chat"),
        ({"salt": "s"}, "--salt"),
        ({"hash_seed": ""}, "--hash-seed"),
        ({"min_tail_tokens": 32}, "--min-tail-tokens"),
    ],
)
async def test_what_says_how_a_prompt_is_read_is_refused_without_one(
    details: dict[str, Any], field: str
) -> None:
    prompt = PromptOptions(**details)

    with pytest.raises(ConfigError) as by_hashes:
        source_of("-", prompt).read()
    with pytest.raises(ConfigError) as listing:
        await pin(Options(uri="s3://bucket/prefix"), None, PinOptions(), prompt, Output("human"))

    assert {by_hashes.value.field, listing.value.field} == {field}


def test_chunks_are_named_in_exactly_one_way() -> None:
    with pytest.raises(ConfigError, match="no chunks are named"):
        source_of().read()
    with pytest.raises(ConfigError, match="name one of them"):
        source_of("-", PromptOptions(token_ids="-")).read()


def prompt_of(tmp_path: Path, token_count: int) -> PromptOptions:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(list(range(token_count))), "ascii")
    return PromptOptions(token_ids=str(file), min_tail_tokens=BLOCK_TOKENS)


def test_a_prompt_names_its_full_chunks_and_its_tail(tmp_path: Path) -> None:
    fields = replace(small_namespace().fields, hash_algorithm="sha256_cbor")
    namespace = replace(small_namespace(), fields=fields)
    assert chunk_blocks_for(CHUNK_TOKENS, BLOCK_TOKENS) == 4
    names = []
    for token_count in (2 * CHUNK_TOKENS, 2 * CHUNK_TOKENS + BLOCK_TOKENS):
        source = source_of(prompt=prompt_of(tmp_path, token_count))
        source.read()
        names.append(source.chunks(namespace))

    assert [len(each) for each in names] == [2, 3]
    assert names[1][:2] == names[0]


def test_a_prompt_that_makes_no_chunk_is_bad_input(tmp_path: Path) -> None:
    source = source_of(prompt=prompt_of(tmp_path, BLOCK_TOKENS - 1))
    source.read()

    with pytest.raises(ConfigError, match="make no chunk") as refused:
        source.chunks(small_namespace())

    assert refused.value.field == "--token-ids"


def test_a_namespace_whose_hashes_cannot_be_derived_is_named(tmp_path: Path) -> None:
    source = source_of(prompt=prompt_of(tmp_path, CHUNK_TOKENS))
    source.read()
    fields = replace(small_namespace().fields, hash_algorithm="xxhash")

    with pytest.raises(ConfigError, match="NAMESPACE"):
        source.chunks(replace(small_namespace(), fields=fields))
