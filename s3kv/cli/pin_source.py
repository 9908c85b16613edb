"""Which chunks `s3kv pin` is about: named by their hashes, or by the prompt that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from s3kv.cli.prompt_keys import Prompt, derive_chunks, read_prompt, read_text
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.ids import BlockHash
from s3kv.core.namespace import Namespace
from s3kv.core.pinset import SET_CHUNKS_MAX
from s3kv.errors import ConfigError

_HEX: Final = frozenset("0123456789abcdef")
_HASH_CHARS: Final = 64
_REMEDY: Final = "write 64 lower-case hex digits a line"


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
            self.prompt.check_alone()
            self._listed = read_hashes(self.hashes, "pin them in parts, with --add")
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
            name, given = "--prompt-file", self.prompt.prompt_file
            if given is None:
                name, given = "--token-ids", self.prompt.token_ids
            problem = f"{derived.token_count} tokens, which make no chunk here"
            raise ConfigError(name, given, problem, "name a longer prompt")
        return [chunk.chunk_hash for chunk in derived.chunks]


def read_hashes(path: str, in_parts: str) -> list[BlockHash]:
    """The hashes in a file, or of standard input for `-`. Raises `ConfigError`.

    in_parts: what to do with more than can be taken at a time.
    """
    return parse_hashes(path, read_text("--hashes", path, _REMEDY), in_parts)


def parse_hashes(path: str, text: str, in_parts: str) -> list[BlockHash]:
    """One hash a line; empty lines are left out, repetitions too. Raises `ConfigError`.

    path: as the user named the file, for the message; in_parts: as `read_hashes`.
    """

    found: dict[BlockHash, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        if len(word) != _HASH_CHARS or not set(word) <= _HEX:
            problem = f"line {number} is no chunk hash: {word[:80]!r}"
            raise ConfigError("--hashes", path, problem, _REMEDY)
        found[BlockHash(bytes.fromhex(word))] = None
    if not found:
        raise ConfigError("--hashes", path, "no chunk hash in it", "write one hash a line")
    if len(found) > SET_CHUNKS_MAX:
        problem = f"{len(found)} chunks, at most {SET_CHUNKS_MAX} at a time"
        raise ConfigError("--hashes", path, problem, in_parts)
    return list(found)
