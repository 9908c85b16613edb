"""A mistyped command line, through the entry point: one line, a document, and help as ever."""

from __future__ import annotations

import json
import sys

import pytest

from s3kv.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code of `s3kv` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["s3kv", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ls"], "uri=None: missing; s3kv ls --help tells how it is used"),
        (["lss"], "COMMAND='lss': no such command 'lss'. Did you mean 'ls'?; s3kv --help lists"),
        (["ls", "s3://bucket/p", "--nope"], "--nope=None: no such option: --nope; s3kv ls --help"),
        (["ls", "s3://bucket/p", "--jsom"], "--jsom=None: no such option: --jsom (did you mean --"),
        (["--nope"], "--nope=None: no such option: --nope; s3kv --help tells"),
        (["verify", "s3://bucket/p", "--sample", "x"], "--sample='x': input should be a valid"),
        (["verify", "s3://bucket/p", "--sample=x"], "--sample='x': input should be a valid"),
        (["verify", "s3://bucket/p", "--sample"], "--sample=None: option '--sample' requires an"),
        (["ls", "s3://bucket/p", "more"], "ARGUMENTS=None: got unexpected extra argument"),
        (["ls", "s3://bucket/p", "--a\x1b\n"], "--a\\x1b\\n=None: no such option"),
    ],
)
def test_a_mistyped_command_is_one_line_with_field_value_and_remedy(
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2

    printed = capsys.readouterr()
    (said,) = printed.err.splitlines()
    assert said.replace("\\\\", "\\").startswith(f"s3kv: {line}")
    assert (printed.out, "\x1b" in said) == ("", False)


@pytest.mark.parametrize("where", [1, 2])
def test_a_mistyped_command_is_one_document_too_where_documents_are_wanted(
    where: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", "s3://bucket/p", "--sample", "x"]
    arguments.insert(where, "--json")

    exit_code = run(monkeypatch, *arguments)

    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert exit_code == document["exit_code"] == 2
    assert (document["error"]["field"], document["error"]["value"]) == ("--sample", "x")
    assert document["error"]["remedy"] == "s3kv verify --help tells how it is used"
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "exit_code", "usage"),
    [
        (["--help"], 0, "s3kv [OPTIONS] COMMAND"),
        (["ls", "--help"], 0, "s3kv ls [OPTIONS]"),
        ([], 2, "s3kv [OPTIONS] COMMAND"),
    ],
)
def test_help_is_printed_as_ever(
    arguments: list[str],
    exit_code: int,
    usage: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == exit_code

    assert usage in capsys.readouterr().out


def test_a_command_s_own_exit_code_is_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ls", "bucket/prefix", "--json") == 2

    assert json.loads(capsys.readouterr().out)["error"]["field"] == "uri"
