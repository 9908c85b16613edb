"""How `s3kv pin` is told which set, and which chunks. What becomes of it: `pinning`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class PinOptions:
    """As the user wrote it; each field is a parameter of the command line."""

    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Id, or its beginning; needed if there are several."),
    ] = None
    hashes: Annotated[
        str | None,
        typer.Option("--hashes", help="A file with one chunk hash (64 hex digits) a line, or -."),
    ] = None
    add: Annotated[
        bool, typer.Option("--add", help="Add to the set if there is one of this name.")
    ] = False
