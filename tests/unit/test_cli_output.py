"""How the command speaks: units, tables, one document, one line for bad input."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from s3kv.cli import app
from s3kv.cli.connection import bucket_settings
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Output, plain_lines
from s3kv.cli.words import age_text, bytes_text, counted, printable
from s3kv.errors import ConfigError


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5_900_000, "5.6 MiB"),
        (3 << 50, "3.0 PiB"),
        (5000 << 50, "5000.0 PiB"),
    ],
)
def test_sizes_are_in_binary_units(byte_count: int, text: str) -> None:
    assert bytes_text(byte_count) == text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (None, "-"),
        (-1.0, "0 s"),
        (59.4, "59 s"),
        (61.0, "1 min"),
        (3_600.0, "1.0 h"),
        (11 * 3_600.0, "11 h"),
        (36 * 3_600.0, "1.5 d"),
        (41 * 86_400.0, "41 d"),
    ],
)
def test_ages_are_in_the_largest_unit_that_fits(age_s: float | None, text: str) -> None:
    assert age_text(age_s) == text


def test_one_thing_is_singular() -> None:
    assert [counted(n, "object") for n in (0, 1, 2_000)] == [
        "0 objects",
        "1 object",
        "2,000 objects",
    ]


def test_control_characters_of_foreign_names_never_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\n\u202ec é") == "a\\x1b[31mb\\n\\u202ec é"


def test_a_plain_table_is_aligned_and_cuts_nothing() -> None:
    columns = (Column("name"), Column("count", "right"))

    lines = plain_lines(columns, [("x" * 200, "7"), ("y", "1,000")])

    assert lines[0] == "name" + " " * 196 + "  count"
    assert lines[1] == "x" * 200 + "      7"
    assert lines[2] == "y" + " " * 199 + "  1,000"


def test_the_document_is_the_only_thing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("json")

    output.answer({"chunks": 3}, lambda: output.line("for people"))

    assert json.loads(capsys.readouterr().out) == {"chunks": 3}


def test_without_a_terminal_no_escape_sequence_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output("human")

    with output.progress("working") as tell:
        tell("hard")
    output.table((Column("state"),), [("failed",)])
    output.line("bold words", "bold")

    printed = capsys.readouterr()
    assert printed.out == "state\nfailed\nbold words\n"
    assert printed.err == ""


BAD_INPUT = [
    (["http://bucket/prefix"], "uri", "'http://bucket/prefix'", "s3://bucket/prefix"),
    (["s3://"], "uri", "'s3://'", "s3://bucket/prefix"),
    (["s3://bucket/a//b"], "uri", "'s3://bucket/a//b'", "s3://bucket/prefix"),
    (["s3://bucket/p", "--endpoint-url", "localhost:9000"], "--endpoint-url", "'local", "http://"),
    (["s3://bucket/p", "--endpoint-url", "http://h:port"], "--endpoint-url", "'http://h", "http:"),
    (["s3://bucket/p", "--endpoint-url", "http://[::1"], "--endpoint-url", "'http://[", "http:"),
    (["s3://bucket/p", "--addressing-style", "paht"], "--addressing-style", "'paht'", "path"),
    (["s3://bucket/p", "--checksum-mode", "always"], "--checksum-mode", "'always'", "when_req"),
    (["s3://bucket/p", "--region", ""], "--region", "''", "leave it out"),
]


@pytest.mark.parametrize("command", ["doctor", "ls", "stat"])
@pytest.mark.parametrize(("arguments", "field", "value", "remedy"), BAD_INPUT)
def test_bad_input_is_one_line_with_field_value_and_remedy(
    command: str, arguments: list[str], field: str, value: str, remedy: str
) -> None:
    result = CliRunner().invoke(app, [command, *arguments])

    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert re.match(rf"s3kv: {re.escape(field)}={re.escape(value)}", line)
    assert remedy in line


@pytest.mark.parametrize("command", ["doctor", "ls", "stat"])
def test_bad_input_is_one_document_too_where_documents_are_wanted(command: str) -> None:
    result = CliRunner().invoke(app, [command, "bucket/prefix", "--json"])

    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_code"] == 2
    assert document["error"]["field"] == "uri"
    assert document["error"]["value"] == "bucket/prefix"


@pytest.mark.parametrize(
    "options",
    [
        Options(uri="s3://key:sesame@bucket/prefix"),
        Options(uri="s3://bucket/prefix", endpoint_url="http://key:sesame@host:9000"),
        Options(uri="s3://bucket/prefix", endpoint_url="http://key:sesame@[::1"),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(options: Options) -> None:
    with pytest.raises(ConfigError) as refusal:
        bucket_settings(options)

    assert "sesame" not in str(refusal.value)


def test_every_command_tells_what_it_does() -> None:
    result = CliRunner().invoke(app, ["--help"])

    assert result.exit_code == 0
    assert "Looks after archives" in result.stdout
    for command in ("doctor", "ls", "stat", "demo"):
        assert f" {command} " in result.stdout
