"""What `s3kv verify` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

SAMPLE_MAX: Final = 1_000_000
"""Shards that are chosen before they are looked at, and held in memory meanwhile."""

SEED_BITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """As the user wrote it; each field is a parameter of the command line."""

    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", help="Id, or its beginning; may be left out if there is only one."
        ),
    ] = None
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte, not headers only.")] = False
    sample: Annotated[
        int | None,
        typer.Option("--sample", help="Look into so many shards only, chosen at random."),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of --sample: the same one chooses the same.")
    ] = None
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Quarantine what is wrong. Without it nothing changes."),
    ] = False
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File in which a run that was killed finds its place."),
    ] = None

    @property
    def mode(self) -> str:
        """What makes two runs alike, in words."""
        depth = "every byte" if self.deep else "headers"
        return f"{depth}, with --yes" if self.yes else depth


def check_options(wishes: VerifyOptions) -> None:
    """Raises `ConfigError` naming the first option that is wrong."""
    from s3kv.errors import ConfigError

    sample, seed = wishes.sample, wishes.seed
    if sample is not None and not 1 <= sample <= SAMPLE_MAX:
        remedy = f"give a number from 1 to {SAMPLE_MAX:,}, or leave it out for all shards"
        raise ConfigError("--sample", sample, "no such number of shards", remedy)
    if seed is not None and sample is None:
        raise ConfigError("--seed", seed, "chooses nothing without --sample", "add --sample")
    if seed is not None and not 0 <= seed < 1 << SEED_BITS:
        raise ConfigError("--seed", seed, "out of range", f"give one from 0 to 2**{SEED_BITS} - 1")
    if sample is not None and wishes.state is not None:
        problem = "a sample is looked at in one go"
        raise ConfigError("--state", str(wishes.state), problem, "leave out one of the two")
