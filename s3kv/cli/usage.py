"""A mistyped command line ends as all bad input does: one line, a document where one is wanted.

Typer would print boxes, and no document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import typer

from s3kv.cli.output import Output
from s3kv.errors import ConfigError

# Typer has a click of its own or imports one, depending on its version, and exports of its
# errors about usage only this one.
_USAGE_ERROR: Final[type[Any]] = typer.BadParameter.__mro__[1]
_EXIT_ABORTED: Final = 130


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, to its exit code.

    Without any, Typer prints the help and ends the process.
    """
    try:
        ended = app(list(arguments), prog_name="s3kv", standalone_mode=not arguments)
    except typer.Abort:
        return _EXIT_ABORTED
    except _USAGE_ERROR as error:
        output = Output("json" if "--json" in arguments else "human")
        exit_code = int(error.exit_code)
        output.refuse_input(_in_words(error, app, arguments), exit_code)
        return exit_code
    return ended if isinstance(ended, int) else 0


def _in_words(error: Any, app: typer.Typer, arguments: Sequence[str]) -> ConfigError:
    """What is wrong with the arguments."""
    known = {command.name for command in app.registered_commands}
    if (command := arguments[0]) not in known and not command.startswith("-"):
        return ConfigError("COMMAND", command, _problem(error), "s3kv --help lists them")
    name, value = "ARGUMENTS", None
    if (option := getattr(error, "option_name", None)) is not None:
        name = option
    elif (parameter := getattr(error, "param", None)) is not None:
        name = parameter.opts[-1]
        value = _value_of(name, arguments)
    words = f"s3kv {command}" if command in known else "s3kv"
    return ConfigError(name, value, _problem(error), f"{words} --help tells how it is used")


def _problem(error: Any) -> str:
    """Half a sentence. What an argument is called is said by the field."""
    said = error.message.rstrip(".") or "missing"
    meant = " or ".join(getattr(error, "possibilities", None) or ())
    return said[0].lower() + said[1:] + (f" (did you mean {meant}?)" if meant else "")


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """What was given for an option, last, or None."""
    value = None
    for argument, after in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == option:
            value = after
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value
