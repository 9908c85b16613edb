"""Settings: every wrong one is one error that names field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from s3kv.config import GIB, KIB, MIB, Settings, parse_request_options, parse_settings
from s3kv.errors import ConfigError

URI = "s3://bucket/prefix"


def settings(**options: object) -> Settings:
    return parse_settings({"uri": URI, **options})


def problem(**options: object) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        settings(**options)
    return raised.value


def test_the_uri_is_all_that_must_be_given() -> None:
    found = settings()
    assert found.uri == URI
    assert (found.probe, found.save, found.load_mode) == ("auto", "prompts", "stream")
    assert found.load_failure_policy == "recompute"
    assert (found.ttl_s, found.max_bytes) == (None, None)


def test_the_fixed_names_are_all_there() -> None:
    names = (
        "uri endpoint_url region profile addressing_style checksum_mode namespace weights_digest "
        "chunk_tokens min_tail_tokens load_mode load_deadline_s lookup_deadline_s probe "
        "min_load_tokens load_failure_policy staging_bytes save ttl_s max_bytes"
    )
    assert set(names.split()) <= set(Settings.model_fields)


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("64KiB", 64 * KIB), (" 1.5 MiB ", 3 * MIB // 2), ("2GiB", 2 * GIB), ("9 B", 9)],
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert settings(staging_bytes=text).staging_bytes == value
    assert settings(max_bytes=value).max_bytes == value


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("2m", 120), ("1.5h", 5_400), ("30d", 2_592_000)]
)
def test_durations_have_units(text: str, value: int) -> None:
    assert settings(ttl_s=text).ttl_s == value


WRONG: list[tuple[str, Any]] = [
    ("endpoint_url", "localhost:9000"),
    ("endpoint_url", 9000),
    ("region", 7),
    ("addressing_style", "paths"),
    ("checksum_mode", "never"),
    ("namespace", "with space"),
    ("namespace", "x" * 129),
    ("weights_digest", ""),
    ("chunk_tokens", 0),
    ("chunk_tokens", "256"),
    ("chunk_tokens", 2.5),
    ("chunk_tokens", True),
    ("min_tail_tokens", 0),
    ("load_mode", "host"),
    ("load_deadline_s", 0),
    ("load_deadline_s", float("nan")),
    ("load_deadline_s", float("inf")),
    ("lookup_deadline_s", -1),
    ("lookup_deadline_s", "soon"),
    ("probe", "on"),
    ("probe", True),
    ("min_load_tokens", -1),
    ("load_failure_policy", "fail"),
    ("staging_bytes", "512 MB"),
    ("staging_bytes", "-1MiB"),
    ("staging_bytes", 0),
    ("staging_bytes", 1.5),
    ("save", "all"),
    ("save", False),
    ("ttl_s", "a month"),
    ("ttl_s", 0),
    ("max_bytes", -5),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_named_with_its_field_and_what_would_be_right(
    field: str, value: object
) -> None:
    found = problem(**{field: value})
    assert found.field == field
    assert repr(found.value) == repr(value)
    text = str(found)
    assert text.startswith(f"{field}={value!r}: ")
    assert "expected" in text
    assert "default" in text


@pytest.mark.parametrize("uri", ["https://bucket/prefix", "bucket/prefix", "s3:/b", "s3://", "", 7])
def test_a_wrong_uri_is_named_with_the_right_form(uri: object) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_settings({"uri": uri})
    assert raised.value.field == "uri"
    assert "s3://bucket/prefix" in raised.value.remedy


def test_a_missing_uri_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_settings({})
    assert raised.value.field == "uri"
    assert "required" in raised.value.problem


@pytest.mark.parametrize(
    ("typed", "meant"), [("chunk_token", "chunk_tokens"), ("endpoint", "endpoint_url"), ("URI", "")]
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(typed: str, meant: str) -> None:
    found = problem(**{typed: 1})
    assert found.field == typed
    assert "unknown option" in found.problem
    assert f"did you mean {meant}?" in found.remedy if meant else "known options" in found.remedy


@pytest.mark.parametrize(
    "key", ["aws_access_key_id", "aws_secret_access_key", "Session_Token", "password", "secret"]
)
def test_credentials_are_refused_and_never_repeated(key: str) -> None:
    found = problem(**{key: "hunter2"})
    assert found.field == key
    assert "hunter2" not in str(found)
    assert "AWS chain" in found.remedy


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        settings().uri = "s3://other"
    assert settings() == settings()


# ------------------------------------------------------------------------- per request
def test_no_options_are_the_defaults() -> None:
    assert parse_request_options(None) == parse_request_options({})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"laod": False}, "laod"),
        ({"load": "no"}, "load"),
        ({"load": 0}, "load"),
        ({"max_load_tokens": -1}, "max_load_tokens"),
        ({"max_load_tokens": "7"}, "max_load_tokens"),
        ("load", "s3kv"),
        ([1], "s3kv"),
    ],
)
def test_a_wrong_option_of_a_request_is_named(options: object, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_request_options(options)
    assert raised.value.field == field
