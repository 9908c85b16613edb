"""How `s3kv verify` takes its options and shows what it found; servers are in integration."""

from __future__ import annotations

import io
import sys

import pytest
from typer.testing import CliRunner

from s3kv.bucket.meter import Traffic
from s3kv.cli import app
from s3kv.cli.output import Output
from s3kv.cli.verify_options import VerifyOptions
from s3kv.cli.verify_view import SHOWN_MAX, Verified
from s3kv.core.requests import Listed
from s3kv.core.verified import Fate, Tally
from s3kv.core.verifying import Fault, Wrong
from tests.fakes.index_store import NS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sample", "0"], "--sample=0"),
        (["--sample", "-5"], "--sample=-5"),
        (["--sample", "1000001"], "leave it out for all"),
        (["--seed", "3"], "add --sample"),
        (["--sample", "3", "--seed", "-1"], "out of range"),
        (["--sample", "3", "--seed", str(2**64)], "out of range"),
        (["--sample", "3", "--state", "x"], "in one go"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_asked(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["verify", "s3://bucket/prefix", *arguments])

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert says in line


def verified(tally: Tally, **changes: object) -> Verified:
    given: dict[str, object] = {
        "uri": "s3://bucket/prefix",
        "namespace": NS,
        "wishes": VerifyOptions(),
        "seed": 7,
        "tally": tally,
        "traffic": Traffic(),
        "duration_s": 61.0,
        "resumed_at": 0,
        "unreadable_count": 0,
    }
    return Verified(**(given | changes))  # type: ignore[arg-type]


def shown(found: Verified, capsys: pytest.CaptureFixture[str]) -> str:
    found.show(Output("human"))
    return " ".join(capsys.readouterr().out.split())


def bad_tally(count: int) -> Tally:
    tally = Tally(shards=count, good=0)
    for index in range(count):
        key = f"{NS}/data/ab/shard {index}"
        tally.add_bad(Listed(key, 5, 0.0, 0.0, "e"), Fault(Wrong.SIZE, "short"), Fate.REPORTED)
    return tally


def test_people_see_the_first_bad_ones_and_programs_all(capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(bad_tally(SHOWN_MAX + 5))

    words = shown(found, capsys)

    assert f"shard {SHOWN_MAX - 1} size short reported" in words
    assert f"shard {SHOWN_MAX} " not in words
    assert "and 5 more: --json names them" in words
    shards = found.document(1)["shards"]
    assert isinstance(shards, list)
    assert len(shards) == SHOWN_MAX + 5


@pytest.mark.parametrize(
    ("tally", "says"),
    [
        (Tally(unchecked=2), "could not be checked 2 shards"),
        (Tally(unknown_format=1), "unknown format 1 shard"),
        (Tally(vanished=1), "deleted meanwhile 1 shard"),
        (Tally(incomplete_chunks=1, incomplete_names=["x lacks writer 1"]), "x lacks writer 1"),
        (Tally(waiting_chunks=1), "still being written 1 chunk"),
        (Tally(gone_chunks=3), "in the index, not in the bucket 3 chunks"),
        (Tally(unlisted_chunks=3), "not in the index 3 chunks; a sweep or s3kv doctor --rebuild"),
        (Tally(unlisted_chunks=3, young_chunks=2), "3 chunks, 2 of them too young to tell"),
        (Tally(forgotten_chunks=1), "a sweep deletes them 1 chunk"),
        (Tally(foreign=4), "left alone 4 objects"),
        (Tally(unchecked=1, unchecked_names=["key: broken"]), "key: broken"),
    ],
)
def test_people_are_told_everything_unusual(
    tally: Tally, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in shown(verified(tally), capsys)
    assert says not in shown(verified(Tally(good=1)), capsys)


def test_only_who_changed_nothing_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "nothing was changed"

    assert hint in shown(verified(bad_tally(1)), capsys)
    assert hint not in shown(verified(bad_tally(1), wishes=VerifyOptions(yes=True)), capsys)
    assert hint not in shown(verified(Tally(good=1)), capsys)


def test_who_quarantined_is_told_that_only_whole_chunks_are_adopted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally(unlisted_chunks=3)
    assert "--rebuild adopts them" in shown(verified(tally), capsys)
    tally.add_bad(Listed("k", 5, 0.0, 0.0, "e"), Fault(Wrong.SIZE, "short"), Fate.QUARANTINED)

    assert "--rebuild adopts those that are still whole" in shown(verified(tally), capsys)


def test_requests_are_priced_by_their_kind() -> None:
    traffic = Traffic({"get": 1_000_000, "head": 1_000_000, "list": 1_000, "delete": 5_000})

    assert verified(Tally(), traffic=traffic).usd == pytest.approx(0.4 + 0.4 + 0.005)


def test_an_index_that_cannot_be_read_whole_is_not_all_good() -> None:
    assert verified(Tally(good=1)).is_all_good
    assert not verified(Tally(good=1), unreadable_count=1).is_all_good


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_bar_is_drawn_for_people_only(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = stream()
    monkeypatch.setattr(sys, "stderr", drawn)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    with Output("human").bar("verifying [all]", 256) as tell:
        tell(64, "7 shards, 1 [bad]")

    if stream is Terminal:
        for part in ("verifying [all]", "25%", "7 shards, 1 [bad]"):
            assert part in drawn.getvalue()
    else:
        assert drawn.getvalue() == ""
