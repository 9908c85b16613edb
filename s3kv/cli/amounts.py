"""Durations and sizes as they are written on a command line: like those of the engine's options."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from s3kv.config import ByteCount, Seconds
from s3kv.errors import ConfigError

_SECONDS: TypeAdapter[int] = TypeAdapter(Seconds)
_BYTES: TypeAdapter[int] = TypeAdapter(ByteCount)


def seconds(field: str, text: str) -> int:
    """`30d`, `12h`, `90m`, `3600s`, `3600`. Raises `ConfigError` for anything else, and for zero.

    field: the option as the user writes it.
    """
    return _positive(field, text, _SECONDS, 'write it as "30d", "12h", "90m" or "3600s"')


def byte_count(field: str, text: str) -> int:
    """`500GiB`, `2TiB`, `1048576`. Raises `ConfigError` for anything else, and for zero."""
    return _positive(field, text, _BYTES, 'write it as "500GiB" or "2TiB"')


def _positive(field: str, text: str, kind: TypeAdapter[int], remedy: str) -> int:
    try:
        value = kind.validate_python(text)
    except ValidationError:
        raise ConfigError(field, text, "not a number with a unit", remedy) from None
    if value <= 0:
        raise ConfigError(field, text, "must be more than zero", remedy)
    return value
