"""How a command is told a prompt, in one place. What becomes of it: `prompt_keys`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from s3kv.errors import ConfigError

MIN_TAIL_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """A prompt as the user gives it; each field is a parameter of the command line."""

    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder or name of the model, for its tokeniser."),
    ] = None
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file",
            help="The prompt's text, exactly as an engine gets it, a last newline included; - reads"
            " standard input.",
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="The prompt file is a JSON list of messages: the chat template is used."
        ),
    ] = False
    token_ids: Annotated[
        str | None,
        typer.Option(
            "--token-ids",
            help="In place of model and prompt file: a file with a JSON list of token ids, or -.",
        ),
    ] = None
    salt: Annotated[
        str, typer.Option("--salt", help="The request's cache_salt.", show_default=False)
    ] = ""
    hash_seed: Annotated[
        str | None,
        typer.Option("--hash-seed", help="The engines' PYTHONHASHSEED, if they have one."),
    ] = None
    min_tail_tokens: Annotated[
        int, typer.Option("--min-tail-tokens", help="The engines' min_tail_tokens.", min=1)
    ] = MIN_TAIL_TOKENS

    @property
    def is_given(self) -> bool:
        """Whether the user named a prompt at all."""
        return self.prompt_file is not None or self.token_ids is not None

    def check_alone(self) -> None:
        """Raise `ConfigError` for an option that only says how a prompt is read, without one."""
        if self.is_given:
            return
        told = {
            "--model": self.model,
            "--chat": self.chat or None,
            "--salt": self.salt or None,
            "--hash-seed": self.hash_seed,
            "--min-tail-tokens": (
                self.min_tail_tokens if self.min_tail_tokens != MIN_TAIL_TOKENS else None
            ),
        }
        for name, value in told.items():
            if value is not None:
                remedy = "name one with --prompt-file or --token-ids, or leave this out"
                raise ConfigError(name, value, "says nothing without a prompt", remedy)
