"""What `s3kv sweep` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """As the user wrote it; each field is a parameter of the command line."""

    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Forget what was not used for so long, e.g. 30d.")
    ] = None
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            help="Forget the least recently used beyond this size of all chosen namespaces "
            "together, e.g. 500GiB.",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Only this one: its id or the beginning of it."),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it nothing changes.")] = False
    every: Annotated[
        str | None,
        typer.Option("--every", help="Sweep again after so long, e.g. 1h, until it is stopped."),
    ] = None
    lifecycle_days: Annotated[
        int | None,
        typer.Option(
            "--lifecycle-days",
            help="Days after which a lifecycle rule of the bucket expires objects: those in use "
            "are copied onto themselves before.",
        ),
    ] = None
    quarantine_ttl: Annotated[
        str, typer.Option("--quarantine-ttl", help="How long quarantined shards are kept.")
    ] = "30d"
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File in which a sweep that was stopped finds its place."),
    ] = None
