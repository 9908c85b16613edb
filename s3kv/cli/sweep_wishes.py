"""The options of `s3kv sweep`, checked and in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from s3kv.cli.amounts import byte_count, seconds
from s3kv.cli.sweep_options import SweepOptions
from s3kv.errors import ConfigError

DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepWishes:
    """`SweepOptions` in numbers. None: no such limit, not again, no such rule."""

    ttl_s: int | None
    max_bytes: int | None
    namespace: str | None
    acts: bool
    every_s: int | None
    renew_after_s: int | None
    quarantine_age_s: int
    state: Path | None

    @property
    def forgets(self) -> bool:
        """Whether anything is to be forgotten that is not condemned yet."""
        return self.ttl_s is not None or self.max_bytes is not None

    def sameness(self, uri: str, endpoint_url: str | None) -> Mapping[str, object]:
        """What makes two passes parts of one sweep."""
        return {
            "uri": uri,
            "endpoint_url": endpoint_url,
            "ttl_s": self.ttl_s,
            "max_bytes": self.max_bytes,
            "namespace": self.namespace,
            "renew_after_s": self.renew_after_s,
            "quarantine_age_s": self.quarantine_age_s,
        }


def wishes_of(options: SweepOptions) -> SweepWishes:
    """Check the options. Raises `ConfigError` naming the first one that is wrong."""
    for field, value in (("--every", options.every), ("--state", options.state)):
        if value is not None and not options.yes:
            raise ConfigError(field, str(value), "a dry run changes nothing", "add --yes")
    return SweepWishes(
        ttl_s=None if options.ttl is None else seconds("--ttl", options.ttl),
        max_bytes=None
        if options.max_bytes is None
        else byte_count("--max-bytes", options.max_bytes),
        namespace=options.namespace,
        acts=options.yes,
        every_s=None if options.every is None else seconds("--every", options.every),
        renew_after_s=_renew_after_s(options.lifecycle_days),
        quarantine_age_s=seconds("--quarantine-ttl", options.quarantine_ttl),
        state=options.state,
    )


def _renew_after_s(days: int | None) -> int | None:
    """A tenth of the time, at least a day, before the rule takes them: sweeps come daily or so."""
    if days is None:
        return None
    if days < 2:
        remedy = "give the rule at least 2 days: within one, nothing can be renewed in time"
        raise ConfigError("--lifecycle-days", days, "too short", remedy)
    expiry_s = days * DAY_S
    return expiry_s - max(DAY_S, expiry_s // 10)
