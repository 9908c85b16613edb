"""The one reader of `kv_connector_extra_config`: every key, its type, its bounds, its default.

`parse_settings` turns the user's dictionary into a frozen `Settings` or raises one `ConfigError`
that names the field, the value and the remedy. Unknown keys are errors (FAULTS 49), credentials
are refused: they come from the standard AWS chain only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from s3kv.errors import ConfigError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?\s*$")
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|m|h|d)?\s*$")
_SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SECRETS = ("access_key", "secret", "session_token", "password", "credential")


def _scaled(value: object, pattern: re.Pattern[str], units: Mapping[str, int], hint: str) -> object:
    """A number as it is, or a string with a unit as an int; anything else is left to pydantic."""
    if not isinstance(value, str):
        return value
    found = pattern.match(value)
    if found is None:
        raise ValueError(f"not a number with a unit such as {hint}")
    return int(float(found[1]) * units[found[2] or next(iter(units))])


def _bytes(value: object) -> object:
    return _scaled(value, _SIZE, _SIZE_UNITS, '"512MiB"')


def _seconds(value: object) -> object:
    return _scaled(value, _DURATION, _DURATION_UNITS, '"30d"')


ByteCount = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[int, BeforeValidator(_seconds)]


class Settings(BaseModel):
    """Everything a user may set. Frozen; compared and printed by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    uri: str = Field(pattern=r"^s3://[^/]+")
    """`s3://bucket/prefix`: where the archive lies. The bucket must exist."""
    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+")
    """Base URL of an S3-compatible store; AWS if unset."""
    region: str | None = None
    """AWS region; the SDK's chain decides if unset."""
    profile: str | None = None
    """Name of a profile in the AWS configuration files."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """How the bucket appears in the URL; many compatible stores need `path`."""
    checksum_mode: Literal["when_required", "when_supported"] = "when_required"
    """The SDK's request checksums; shards carry their own, so `when_required` loses nothing."""

    namespace: str = Field(default="", max_length=128, pattern=r"^[A-Za-z0-9._:/-]*$")
    """A label that separates archives; one more hashed field, never a replacement of another."""
    weights_digest: str = Field(default="auto", min_length=1, max_length=256)
    """`auto`, `full`, or a literal value that the user vouches for."""
    chunk_tokens: int = Field(default=256, ge=1, le=65_536)
    """Tokens per shard; rounded up to whole blocks. 4-64 MiB per shard are advised."""
    min_tail_tokens: int = Field(default=64, ge=1)
    """Shorter tails of a prompt are not archived: small objects cost more than they save."""

    load_mode: Literal["stream"] = "stream"
    """How loads reach the device: blocks first, then fetch."""
    load_deadline_s: float = Field(default=10.0, gt=0, le=3600, strict=False)
    """A load that is not complete by then is recomputed from its first missing block."""
    lookup_deadline_s: float = Field(default=0.1, gt=0, le=60, strict=False)
    """A lookup without an answer by then is a miss."""
    probe: Literal["auto", "off", "fresh"] = "auto"
    """Ask the bucket by HEAD when the index cannot answer (`auto`), never (`off`), or also one
    HEAD past the end of an index hit (`fresh`)."""
    min_load_tokens: int = Field(default=0, ge=0)
    """Hits shorter than this are computed instead."""
    load_failure_policy: Literal["recompute", "engine"] = "recompute"
    """`recompute` makes a failed load cost time only; `engine` leaves vLLM's own setting."""

    staging_bytes: ByteCount = Field(default=512 * MIB, gt=0)
    """Page-locked host memory for shards on their way. Full: saves are dropped and counted."""
    save: Literal["prompts", "nothing"] = "prompts"
    """Which blocks are archived."""
    ttl_s: Seconds | None = Field(default=None, gt=0)
    """Chunks not used for this long are forgotten (written as the watermark)."""
    max_bytes: ByteCount | None = Field(default=None, gt=0)
    """Beyond this size the least recently used chunks are forgotten."""


class RequestOptions(BaseModel):
    """`kv_transfer_params["s3kv"]` of one request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    load: bool = True
    save: bool = True
    max_load_tokens: int | None = Field(default=None, ge=0)


def _refuse_secrets(raw: Mapping[str, object]) -> None:
    for key in raw:
        if any(word in key.lower() for word in _SECRETS):
            raise ConfigError(
                key,
                "<hidden>",
                "credentials do not belong into the engine's configuration",
                "use the standard AWS chain (environment, profile, instance role)",
            )


def _as_config_error(
    error: ValidationError, model: type[BaseModel], where: str, raw: Mapping[str, object]
) -> ConfigError:
    """The first problem of a pydantic report, in our words."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][:1]) or where
    known = list(model.model_fields)
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known options: {', '.join(known)}"
        return ConfigError(name, raw.get(name), f"unknown option in {where}", hint)
    if first["type"] == "missing":
        remedy = 'set it, e.g. "s3://bucket/prefix"' if name == "uri" else "set it"
        return ConfigError(name, None, f"required in {where}", remedy)
    if name == "uri":
        return ConfigError(name, raw.get(name), "not an S3 URI", 'write it as "s3://bucket/prefix"')
    field = model.model_fields[name]
    expected = str(field.annotation).replace("typing.", "")
    return ConfigError(
        name, raw.get(name), first["msg"].lower(), f"expected {expected}, default {field.default!r}"
    )


def parse_settings(raw: Mapping[str, object]) -> Settings:
    """Check the whole of `kv_connector_extra_config`.

    Raises `ConfigError` on an unknown key (with the nearest known one), a wrong type or value, a
    missing `uri`, and on anything that looks like a credential.
    """
    _refuse_secrets(raw)
    try:
        return Settings.model_validate(dict(raw))
    except ValidationError as error:
        raise _as_config_error(error, Settings, "kv_connector_extra_config", raw) from None


def parse_request_options(raw: object) -> RequestOptions:
    """Check `kv_transfer_params["s3kv"]`; None means the defaults. Raises `ConfigError`."""
    if raw is None:
        return RequestOptions()
    if not isinstance(raw, Mapping):
        raise ConfigError(
            "s3kv", raw, "per-request options must be an object", 'e.g. {"load": false}'
        )
    try:
        return RequestOptions.model_validate(dict(raw))
    except ValidationError as error:
        raise _as_config_error(error, RequestOptions, "kv_transfer_params.s3kv", raw) from None
