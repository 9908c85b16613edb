"""From a prompt as people have it to the names that an engine gives its chunks."""

from __future__ import annotations

import io
import json
import socket
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from s3kv.cli.prompt_keys import Derived, Prompt, derive_chunks, read_prompt
from s3kv.cli.prompt_options import PromptOptions
from s3kv.config import Settings
from s3kv.core.blockhash import block_hashes
from s3kv.core.chunking import Chunk
from s3kv.core.namespace import NamespaceFields
from s3kv.errors import ConfigError
from tests.fakes.namespaces import namespace_fields
from tests.fakes.prompts import CHAINS, HASH_BLOCK, SALT, TOKEN_IDS


def fields_with(**changes: Any) -> NamespaceFields:
    return replace(namespace_fields(), **changes)


FIELDS = fields_with(hash_block_size=HASH_BLOCK, block_tokens=HASH_BLOCK, chunk_tokens=24)


def derived(token_count: int = len(TOKEN_IDS), **prompt: Any) -> Derived:
    given = {"min_tail_tokens": 8, **prompt}
    return derive_chunks(Prompt(TOKEN_IDS[:token_count], **given), FIELDS)


def refusal(options: PromptOptions) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        read_prompt(options)
    return refused.value


# ------------------------------------------------------------------------------ names
def test_chunks_are_named_by_the_engine_s_hash_of_their_last_block() -> None:
    names = [bytes.fromhex(each) for each in CHAINS["sha256_cbor", ""]]

    found = derived()

    assert found.chunks == (Chunk(0, 3, names[2]), Chunk(3, 4, names[3]))  # type: ignore[arg-type]
    assert list(found.hashes) == names
    assert found.token_count == 32


def test_algorithm_and_salt_are_those_of_namespace_and_request() -> None:
    fields = replace(FIELDS, hash_algorithm="sha256")

    found = derive_chunks(Prompt(TOKEN_IDS, salt=SALT), fields)

    assert [each.hex() for each in found.hashes] == list(CHAINS["sha256", SALT])


def test_a_seed_leads_to_other_names() -> None:
    assert not set(derived(seed="0").hashes) & set(derived().hashes)


def test_finer_hashes_than_blocks_become_one_per_block() -> None:
    fields = replace(FIELDS, block_tokens=2 * HASH_BLOCK, chunk_tokens=2 * HASH_BLOCK)

    found = derive_chunks(Prompt(TOKEN_IDS), fields)

    fine = block_hashes("sha256_cbor", TOKEN_IDS, HASH_BLOCK)
    assert list(found.hashes) == fine[1::2]
    assert [chunk.end_block for chunk in found.chunks] == [1, 2]


@pytest.mark.parametrize(
    ("token_count", "min_tail_tokens", "ends"),
    [(32, 8, [3, 4]), (32, 9, [3]), (31, 8, [3]), (23, 9, [2]), (15, 9, []), (0, 8, [])],
)
def test_tails_are_as_long_as_the_engine_s_setting_wants(
    token_count: int, min_tail_tokens: int, ends: list[int]
) -> None:
    found = derived(token_count, min_tail_tokens=min_tail_tokens)

    assert [chunk.end_block for chunk in found.chunks] == ends


def test_every_chunk_inside_a_prompt_may_be_a_shorter_prompt_s_tail() -> None:
    spans = [(chunk.start_block, chunk.end_block) for chunk in derived().every_chunk()]

    assert spans == [(0, 1), (0, 2), (0, 3), (3, 4)]
    assert set(derived().chunks) <= set(derived().every_chunk())


@pytest.mark.parametrize("changes", [{"hash_algorithm": "xxhash"}, {"block_tokens": 12}])
def test_fields_with_which_no_engine_hashes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"xxhash|blocks of 12"):
        derive_chunks(Prompt(TOKEN_IDS), replace(FIELDS, **changes))


def test_the_shortest_tail_is_the_engine_s_default() -> None:
    default = Settings.model_fields["min_tail_tokens"].default

    assert PromptOptions().min_tail_tokens == Prompt(()).min_tail_tokens == default


# ------------------------------------------------------------------------------ token ids
def test_token_ids_are_read_from_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ids.json"
    path.write_text("[1, 2, 3]")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"[4]")))

    from_file = read_prompt(PromptOptions(token_ids=str(path), salt="s", hash_seed="7"))
    from_stdin = read_prompt(PromptOptions(token_ids="-", min_tail_tokens=3))

    assert from_file == Prompt((1, 2, 3), "s", "7", 64)
    assert from_stdin == Prompt((4,), min_tail_tokens=3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"{}", "not a list of token ids"),
        (b"[]", "not a list of token ids"),
        (b"[1, -2]", "-2 is no token id"),
        (b"[true]", "True is no token id"),
        (b'["1"]', "'1' is no token id"),
        (b"[4294967296]", "4294967296 is no token id"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_list_of_token_ids_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "ids.json"
    path.write_bytes(content)

    found = refusal(PromptOptions(token_ids=str(path)))

    assert (found.field, found.problem) == ("--token-ids", problem)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (PromptOptions(), "--prompt-file"),
        (PromptOptions(prompt_file="p"), "--model"),
        (PromptOptions(prompt_file="p", token_ids="t"), "--token-ids"),
        (PromptOptions(token_ids="t", model="m"), "--model"),
        (PromptOptions(token_ids="t", chat=True), "--chat"),
        (PromptOptions(prompt_file="/nowhere", model="m"), "--prompt-file"),
        (PromptOptions(token_ids="/"), "--token-ids"),
    ],
)
def test_what_is_missing_is_named(options: PromptOptions, field: str) -> None:
    assert refusal(options).field == field


# ------------------------------------------------------------------------------ tokenisers
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokeniser of five words and a chat template; no weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["<s>", "?", "user", "say", "hello", "bot"])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?")
    whole.chat_template = (
        "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}bot{% endif %}"
    )
    folder = tmp_path_factory.mktemp("model")
    whole.save_pretrained(folder)
    return folder


def test_text_becomes_what_the_completions_of_an_engine_make_of_it(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("say hello\n")

    found = read_prompt(PromptOptions(model=str(model), prompt_file=str(path)))

    assert found.token_ids == (0, 3, 4)


def test_messages_go_through_the_chat_template(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    path.write_text(json.dumps([{"role": "user", "content": "say hello"}]))

    found = read_prompt(PromptOptions(model=str(model), prompt_file=str(path), chat=True))

    assert found.token_ids == (2, 3, 4, 5)


@pytest.mark.parametrize("content", ["say hello", "[]", '[{"content": "x"}]', '["x"]'])
def test_what_is_no_list_of_messages_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "messages.json"
    path.write_text(content)

    found = refusal(PromptOptions(model="m", prompt_file=str(path), chat=True))

    assert found.field == "--prompt-file"
    assert "JSON list of messages" in found.remedy


def test_a_model_without_a_chat_template_is_named(model: Path, tmp_path: Path) -> None:
    bare, path = tmp_path / "bare", tmp_path / "messages.json"
    bare.mkdir()
    for each in model.iterdir():
        if "template" not in each.name:
            (bare / each.name).write_bytes(each.read_bytes())
    path.write_text('[{"role": "user", "content": "x"}]')

    found = refusal(PromptOptions(model=str(bare), prompt_file=str(path), chat=True))

    assert (found.field, found.problem) == ("--chat", "the model has no chat template")


def test_messages_that_a_template_refuses_are_one_line(model: Path, tmp_path: Path) -> None:
    strict, path = tmp_path / "strict", tmp_path / "messages.json"
    strict.mkdir()
    for each in model.iterdir():
        (strict / each.name).write_bytes(each.read_bytes())
    (strict / "chat_template.jinja").write_text("{{ raise_exception('only user turns') }}")
    path.write_text('[{"role": "system", "content": "x"}]')

    found = refusal(PromptOptions(model=str(strict), prompt_file=str(path), chat=True))

    assert found.field == "--chat"
    assert "only user turns" in found.problem


def test_a_model_that_cannot_be_found_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "prompt.txt"
    path.write_text("hello")

    found = refusal(PromptOptions(model=str(tmp_path), prompt_file=str(path)))

    assert found.field == "--model"
    assert found.problem.startswith("no tokeniser: ")
    assert "\n" not in str(found)
    assert "--token-ids" in found.remedy


def test_a_mistyped_model_is_not_sought_in_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "prompt.txt"
    asked: list[str] = []
    path.write_text("hello")

    def resolve(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    found = refusal(PromptOptions(model="nobody/mistyped", prompt_file=str(path)))

    # The hub's client may once look up something of its own, which is not the model.
    assert (found.field, len(asked) <= 1) == ("--model", True)
    assert found.problem == "no tokeniser: this machine has no such model"
    assert capfd.readouterr() == ("", "")


def test_without_transformers_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("hello")
    monkeypatch.setitem(sys.modules, "transformers", None)

    found = refusal(PromptOptions(model="m", prompt_file=str(path)))

    assert found.field == "--model"
    assert "transformers" in found.problem
    assert "--token-ids" in found.remedy
