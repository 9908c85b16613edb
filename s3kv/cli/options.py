"""What every command that talks to a bucket can be told, in one place.

Commands are imported when they run, so nothing here imports an SDK.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from typing import Annotated, TypeAlias

import typer

from s3kv.cli.output import Output

Work: TypeAlias = Coroutine[None, None, int]
"""A command under way; its result is the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The connection as the user wrote it; each field is a parameter of the command line."""

    uri: Annotated[str, typer.Argument(help="s3://bucket/prefix", show_default=False)]
    endpoint_url: Annotated[
        str | None,
        typer.Option("--endpoint-url", help="Base URL of an S3-compatible store; AWS if left out."),
    ] = None
    region: Annotated[
        str | None,
        typer.Option("--region", help="Region; the AWS chain decides if left out."),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="Profile in the AWS configuration files."),
    ] = None
    addressing_style: Annotated[
        str,
        typer.Option("--addressing-style", help="auto, path or virtual; many stores need path."),
    ] = "auto"
    checksum_mode: Annotated[
        str,
        typer.Option("--checksum-mode", help="when_required or when_supported: SDK checksums."),
    ] = "when_required"


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def with_options(command: Callable[..., Work]) -> Callable[..., None]:
    """Give a command the parameters of `Options` and `--json` beside its own.

    command: (Options, Output, own parameters); on the command line its own follow the URI. One
    whose type is a dataclass stands for a parameter per field.
    """
    _, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    uri, *connection = inspect.signature(Options, eval_str=True).parameters.values()
    json = uri.replace(name="json", default=False, annotation=AsJson)
    spread = [shown for parameter in own for shown in _spread(parameter)]
    shown = [p.replace(kind=uri.kind) for p in (uri, *spread, *connection, json)]

    @wraps(command)
    def run(*, json: bool, **given: str | None) -> None:
        from s3kv.cli.connection import run_command

        output = Output("json" if json else "human")
        rest = {parameter.name: _taken(parameter, given) for parameter in own}
        # Typer gives each field the type that `Options` declares for it.
        options = Options(**given)  # type: ignore[arg-type]
        raise typer.Exit(
            run_command(options.uri, output, partial(command, options, output, **rest))
        )

    # Typer reads the one for the parameters and the other for their types.
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _fields_of(parameter: inspect.Parameter) -> type | None:
    """The dataclass whose fields stand for a parameter, or None for an ordinary one."""
    kind = parameter.annotation
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _spread(parameter: inspect.Parameter) -> Sequence[inspect.Parameter]:
    """What the command line shows of one parameter."""
    kind = _fields_of(parameter)
    if kind is None:
        return [parameter]
    return list(inspect.signature(kind, eval_str=True).parameters.values())


def _taken(parameter: inspect.Parameter, given: dict[str, str | None]) -> object:
    """The value of one parameter, taken out of what the command line gave."""
    kind = _fields_of(parameter)
    if kind is None:
        return given.pop(parameter.name)
    return kind(**{shown.name: given.pop(shown.name) for shown in _spread(parameter)})
