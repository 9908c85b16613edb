"""Where a sweep stands, in a file: what counts, what does not, what is never written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3kv.cli.sweep_state import STATE_MAX_AGE_S, load_state
from s3kv.core.ids import NamespaceId
from s3kv.errors import ConfigError

NS = NamespaceId("0" * 32)


def test_a_sweep_that_was_stopped_finds_its_place(tmp_path: Path) -> None:
    path, sweep = tmp_path / "place", {"uri": "s3://b/p"}
    first = load_state(path, sweep, 1_000.0)
    first.finish(NS, ("00", "01"), 1_000.0)
    first.finish(NS, ("02",), 1_001.0)

    again = load_state(path, sweep, 1_000.0 + STATE_MAX_AGE_S)

    assert (again.done, again.note) == ({NS: ["00", "01", "02"]}, "")
    again.clear()
    assert list(tmp_path.iterdir()) == []
    assert load_state(path, sweep, 1_002.0).done == {}


@pytest.mark.parametrize(
    ("sweep", "now_s", "says"),
    [
        ({"uri": "s3://b/other"}, 1_000.0, "another URI"),
        ({"uri": "s3://b/p"}, 1_002.0 + STATE_MAX_AGE_S, "a day old"),
        ({"uri": "s3://b/p"}, 999.0, "a day old"),
    ],
)
def test_a_place_that_does_not_count_is_said_to(
    tmp_path: Path, sweep: dict[str, str], now_s: float, says: str
) -> None:
    path = tmp_path / "place"
    load_state(path, {"uri": "s3://b/p"}, 1_000.0).finish(NS, ("00",), 1_000.0)

    state = load_state(path, sweep, now_s)

    assert state.done == {}
    assert says in state.note


@pytest.mark.parametrize("body", [b"my diary", b"{}", b"\xff", b'{"format": "other/1"}'])
def test_a_file_that_is_no_state_is_never_written_over(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "diary"
    path.write_bytes(body)

    with pytest.raises(ConfigError, match="not the state of a sweep"):
        load_state(path, {}, 0.0)

    assert path.read_bytes() == body


def test_a_place_that_cannot_be_written_is_a_matter_of_one_line(tmp_path: Path) -> None:
    state = load_state(tmp_path / "no such folder" / "place", {}, 0.0)

    with pytest.raises(ConfigError, match="--state"):
        state.finish(NS, ("00",), 0.0)
