"""Which chunks `s3kv pin` is about: named by their hashes, or by the prompt that they belong to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from s3kv.cli.prompt_keys import Prompt, derive_chunks, read_prompt
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.ids import BlockHash
from s3kv.core.namespace import Namespace
from s3kv.core.pinset import SET_CHUNKS_MAX
from s3kv.errors import ConfigError

_HEX: Final = frozenset("0123456789abcdef")
_HASH_CHARS: Final = 64


@dataclass(slots=True)
class Source:
    """Where the chunks come from. Owned by one command: `read` once, then `chunks`.

    adds: to a set that may be there already.
    """

    hashes: str | None
    prompt: PromptOptions
    adds: bool
    _listed: list[BlockHash] = field(default_factory=list)
    _prompt: Prompt | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user named any chunks."""
        return self.hashes is not None or self.prompt.is_given

    def read(self) -> None:
        """Read what the user named. Raises `ConfigError` naming what is wrong."""

        if self.hashes is not None and self.prompt.is_given:
            raise ConfigError("--hashes", self.hashes, "a prompt is named too", "name one of them")
        if self.hashes is not None:
            self._listed = parse_hashes(self.hashes, _text_of(self.hashes))
        elif self.prompt.is_given:
            self._prompt = read_prompt(self.prompt)
        else:
            remedy = "name them with --hashes, or their prompt with --prompt-file or --token-ids"
            raise ConfigError("--hashes", None, "no chunks are named", remedy)

    def chunks(self, namespace: Namespace) -> Sequence[BlockHash]:
        """The chunks' hashes, each once. Raises `ConfigError` if the prompt has none."""

        if self._prompt is None:
            return self._listed
        try:
            derived = derive_chunks(self._prompt, namespace.fields)
        except ValueError as error:
            remedy = "name the chunks with --hashes"
            raise ConfigError("NAMESPACE", namespace.id, str(error), remedy) from error
        if not derived.chunks:
            given = self.prompt.prompt_file or self.prompt.token_ids
            problem = f"{derived.token_count} tokens, which make no chunk here"
            raise ConfigError("--prompt-file", given, problem, "name a longer prompt")
        return [chunk.chunk_hash for chunk in derived.chunks]


def parse_hashes(path: str, text: str) -> list[BlockHash]:
    """One hash a line; empty lines are left out, repetitions too. Raises `ConfigError`.

    path: as the user named the file, for the message.
    """

    found: dict[BlockHash, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        if len(word) != _HASH_CHARS or not set(word) <= _HEX:
            problem = f"line {number} is no chunk hash: {word[:80]!r}"
            raise ConfigError("--hashes", path, problem, "write 64 lower-case hex digits a line")
        found[BlockHash(bytes.fromhex(word))] = None
    if not found:
        raise ConfigError("--hashes", path, "no chunk hash in it", "write one hash a line")
    if len(found) > SET_CHUNKS_MAX:
        problem = f"{len(found)} chunks, at most {SET_CHUNKS_MAX} at a time"
        raise ConfigError("--hashes", path, problem, "pin them in parts, with --add")
    return list(found)


def _text_of(path: str) -> str:

    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode("ascii")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError("--hashes", path, reason, "name a file that can be read, or -") from error
    except UnicodeDecodeError as error:
        remedy = "write 64 lower-case hex digits a line"
        raise ConfigError("--hashes", path, "not a list of hashes", remedy) from error
