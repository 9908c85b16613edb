"""From a prompt as people have it (text, messages, token ids) to the names of its chunks.

Rule upheld here: the names are those that an engine derives for the same request: the same
tokeniser, hash chain and chunking, and nothing about them is guessed. What is not in the file
cannot be derived: images, adapters, embeddings, and options of a chat template.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.blockhash import DEFAULT_SEED, block_hashes
from s3kv.core.chunking import Chunk, block_chain, chunk_blocks_for, prompt_chunks
from s3kv.core.ids import BlockHash
from s3kv.core.namespace import NamespaceFields
from s3kv.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKEN_ID_MAX = (1 << 32) - 1

_Tokeniser: TypeAlias = "PreTrainedTokenizerBase"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as an engine gets it, and what else goes into its names."""

    token_ids: tuple[int, ...]
    salt: str = ""
    seed: str = DEFAULT_SEED
    min_tail_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Derived:
    """The names of a prompt in one namespace.

    hashes: one 32-byte hash per whole scheduler block of block_tokens tokens; chunks: the full
    ones, then the prompt's own tail, as an engine saves them.
    """

    token_count: int
    block_tokens: int
    chunk_blocks: int
    min_tail_blocks: int
    hashes: tuple[BlockHash, ...]
    chunks: tuple[Chunk, ...]

    def every_chunk(self) -> list[Chunk]:
        """Every chunk that lies inside the prompt, by end: also tails of shorter prompts that it
        begins with, whatever engines were told about short tails."""
        return [
            Chunk((end - 1) // self.chunk_blocks * self.chunk_blocks, end, self.hashes[end - 1])
            for end in range(1, len(self.hashes) + 1)
        ]


def derive_chunks(prompt: Prompt, fields: NamespaceFields) -> Derived:
    """The prompt's chunks as an engine of this namespace names them.

    Raises ValueError for fields with which no engine hashes (`check_hash_algorithm`, or blocks that
    are no multiple of a hash's).
    """
    hashes_per_block, rest = divmod(fields.block_tokens, fields.hash_block_size)
    if rest:
        raise ValueError(f"blocks of {fields.block_tokens}, hashes of {fields.hash_block_size}")
    fine = block_hashes(
        fields.hash_algorithm,
        prompt.token_ids,
        fields.hash_block_size,
        salt=prompt.salt,
        seed=prompt.seed,
    )
    chain = block_chain(fine, hashes_per_block)
    chunk_blocks = chunk_blocks_for(fields.chunk_tokens, fields.block_tokens)
    min_tail_blocks = chunk_blocks_for(prompt.min_tail_tokens, fields.block_tokens)
    return Derived(
        token_count=len(prompt.token_ids),
        block_tokens=fields.block_tokens,
        chunk_blocks=chunk_blocks,
        min_tail_blocks=min_tail_blocks,
        hashes=tuple(chain),
        chunks=tuple(prompt_chunks(chain, len(chain), chunk_blocks, min_tail_blocks)),
    )


def read_prompt(options: PromptOptions) -> Prompt:
    """Read and tokenise what the options name. Raises `ConfigError` naming what is wrong.

    Standard input is read at most once, so this is called once per command.
    """
    seed = DEFAULT_SEED if options.hash_seed is None else options.hash_seed
    token_ids = _token_ids(options)
    return Prompt(tuple(token_ids), options.salt, seed, options.min_tail_tokens)


def _token_ids(options: PromptOptions) -> Sequence[int]:
    if options.token_ids is not None:
        _check_no_text(options, options.token_ids)
        return _listed_ids(options.token_ids)
    if options.prompt_file is None:
        raise ConfigError(
            "--prompt-file", None, "no prompt is given", "name its file, or one with --token-ids"
        )
    if options.model is None:
        raise ConfigError(
            "--model",
            None,
            "text becomes token ids by the model's own tokeniser",
            "name the model that the engines serve, or give the token ids with --token-ids",
        )
    text = read_text("--prompt-file", options.prompt_file)
    messages = _messages(options.prompt_file, text) if options.chat else None
    tokeniser = _tokeniser(options.model)
    if messages is None:
        return [int(token) for token in tokeniser(text)["input_ids"]]
    return _templated(options.model, tokeniser, messages)


def _check_no_text(options: PromptOptions, token_ids: str) -> None:
    """Token ids need no tokeniser, so nothing that is only for one may come with them."""
    if options.prompt_file is not None:
        raise ConfigError(
            "--token-ids", token_ids, "a prompt file is given too", "give one of them"
        )
    for name, value in (("--model", options.model), ("--chat", options.chat or None)):
        if value is not None:
            problem = "makes token ids of a text, and --token-ids has them"
            raise ConfigError(name, value, problem, "leave out one of the two")


def read_text(name: str, path: str, remedy: str = "convert it, or use --token-ids") -> str:
    """A file of the user, or standard input for `-`. Raises `ConfigError`.

    name: the option; remedy: for what is no text.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(name, path, reason, "name a file that can be read, or -") from error
    except UnicodeDecodeError as error:
        raise ConfigError(name, path, "not UTF-8", remedy) from error


def _json_list(name: str, path: str, text: str, of_what: str) -> list[Any]:
    remedy = f"write a JSON list of {of_what}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(name, path, "not JSON", remedy) from error
    if not isinstance(value, list) or not value:
        raise ConfigError(name, path, f"not a list of {of_what}", remedy)
    return value


def _listed_ids(path: str) -> list[int]:
    name, of_what = "--token-ids", "token ids"
    text = read_text(name, path, f"write a JSON list of {of_what}")
    ids = _json_list(name, path, text, of_what)
    for token in ids:
        if type(token) is not int or not 0 <= token <= TOKEN_ID_MAX:
            raise ConfigError(
                name, path, f"{token!r} is no token id", f"write a JSON list of {of_what}"
            )
    return ids


def _messages(path: str, text: str) -> list[dict[str, Any]]:
    name, of_what = "--prompt-file", "messages with role and content"
    messages = _json_list(name, path, text, of_what)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ConfigError(
                name, path, "a message has no role", f"with --chat, write a JSON list of {of_what}"
            )
    return messages


def _tokeniser(model: str) -> _Tokeniser:
    try:
        from transformers import AutoTokenizer, logging
    except ImportError as error:
        raise ConfigError(
            "--model",
            model,
            "its tokeniser needs the package transformers, which is not installed",
            "run this in the engine's environment, or give the token ids with --token-ids",
        ) from error
    logging.set_verbosity_error()
    try:
        # For a name that is mistyped, the network would be asked again and again.
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        is_unknown = isinstance(error, OSError) and not Path(model).exists()
        raise ConfigError(
            "--model",
            model,
            f"no tokeniser: {'this machine has no such model' if is_unknown else first_line}",
            "name a folder with tokenizer files or a model that this machine has downloaded, or "
            "give the token ids with --token-ids",
        ) from error


def _templated(model: str, tokeniser: _Tokeniser, messages: list[dict[str, Any]]) -> Sequence[int]:
    if not tokeniser.chat_template:
        raise ConfigError("--chat", model, "the model has no chat template", "give the text as is")
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        remedy = "run this in the engine's environment"
        raise ConfigError("--chat", model, "its template needs jinja2", remedy) from error
    try:
        ids = tokeniser.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            "--chat", model, f"its template refuses the messages: {error}", "correct the messages"
        ) from error
    return [int(token) for token in ids]
