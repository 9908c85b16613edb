"""How `s3kv forget` is told what to forget. What becomes of it: `forget`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from s3kv.cli.prompt_options import PromptOptions
from s3kv.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions:
    """As the user wrote it; each field is a parameter of the command line."""

    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            help="Only this one: its id or the beginning of it; --all needs it, of several.",
        ),
    ] = None
    hashes: Annotated[
        str | None,
        typer.Option("--hashes", help="A file with one chunk hash (64 hex digits) a line, or -."),
    ] = None
    everything: Annotated[
        bool, typer.Option("--all", help="The whole namespace, its index and its sets.")
    ] = False
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", help="Refused: requests with adapters are never archived."),
    ] = None
    keep_shared_with: Annotated[
        str | None,
        typer.Option(
            "--keep-shared-with",
            help="A prompt, given as the other one is, whose chunks stay: e.g. a system prompt.",
        ),
    ] = None
    including_pinned: Annotated[
        bool, typer.Option("--including-pinned", help="Also chunks that a set pins.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it nothing changes.")] = False


def check_forget(given: ForgetOptions, prompt: PromptOptions) -> None:
    """Raise `ConfigError` unless exactly one thing to forget is named."""
    if given.adapter is not None:
        raise ConfigError(
            "--adapter",
            given.adapter,
            "requests with adapters are never archived, and nothing says of a chunk which "
            "adapter made it",
            "leave it out; there is nothing to forget",
        )
    ways = {
        "--all": given.everything,
        "--hashes": given.hashes is not None,
        "--prompt-file": prompt.is_given,
    }
    chosen = [name for name, is_given in ways.items() if is_given]
    if len(chosen) > 1:
        raise ConfigError(chosen[1], None, f"{chosen[0]} is given too", "give one of them")
    if prompt.salt and not prompt.is_given:
        raise ConfigError(
            "--salt",
            prompt.salt,
            "a salt exists only inside hashes, so it selects no chunks",
            "name the prompt that it was used with, or forget the whole namespace with --all",
        )
    if not chosen:
        raise ConfigError(
            "--prompt-file",
            None,
            "nothing to forget is named",
            "name a prompt (--prompt-file or --token-ids), chunks (--hashes) or --all",
        )
    prompt.check_alone()
    if given.keep_shared_with is not None and not prompt.is_given:
        raise ConfigError(
            "--keep-shared-with",
            given.keep_shared_with,
            "only a prompt shares chunks with another",
            "use it with --prompt-file or --token-ids",
        )
