"""How far a sweep has come, in a file: one that was stopped goes on where it was.

Correctness never depends on it: whatever it says, each folder is judged by what the bucket says
when it is looked at. So a file of another sweep, or an old one, is left out of account, and said to
be. A file that is no such state is never written over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from s3kv.cli.files import replace_file
from s3kv.core.ids import NamespaceId
from s3kv.errors import ConfigError

STATE_FORMAT: Final = "s3kv-sweep-state/1"

STATE_MAX_AGE_S: Final = 86_400.0
"""After this the folders at the beginning are due again."""

_FIELD: Final = "--state"
_BYTES_MAX: Final = 16 << 20


@dataclass(slots=True)
class SweepState:
    """Folders that one pass is done with, by namespace; kept in `path`, None for nowhere.

    sweep: what makes two passes the same (URI and options); note: why what the file said does not
    count, or the empty string.
    """

    path: Path | None
    sweep: Mapping[str, object]
    done: dict[NamespaceId, list[str]] = field(default_factory=dict)
    note: str = ""

    def finish(self, ns: NamespaceId, folders: Sequence[str], now_s: float) -> None:
        """These folders are done with. Raises `ConfigError` if that cannot be written down."""
        self.done.setdefault(ns, []).extend(folders)
        if self.path is None:
            return
        document = {
            "format": STATE_FORMAT,
            "sweep": self.sweep,
            "written_s": int(now_s),
            "done": self.done,
        }
        try:
            replace_file(self.path, json.dumps(document))
        except OSError as error:
            raise _unusable(self.path, f"cannot be written ({error.strerror})") from None

    def clear(self) -> None:
        """The pass came to its end: the next one begins anew."""
        self.done.clear()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def load_state(path: Path | None, sweep: Mapping[str, object], now_s: float) -> SweepState:
    """Where the sweep stands. Raises `ConfigError` for a file that is something else."""
    state = SweepState(path, sweep)
    if path is None:
        return state
    document = _read(path)
    if document is None:
        return state
    if document.get("sweep") != sweep:
        state.note = f"{path} is of a sweep with another URI or other options: begun anew"
    elif not 0 <= now_s - _number(document.get("written_s")) <= STATE_MAX_AGE_S:
        state.note = f"{path} is more than a day old: begun anew"
    else:
        state.done = _done(document.get("done"))
    return state


def _read(path: Path) -> Mapping[str, object] | None:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_BYTES_MAX))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from None
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != STATE_FORMAT:
        raise _unusable(path, "not the state of a sweep")
    return document


def _done(found: object) -> dict[NamespaceId, list[str]]:
    if not isinstance(found, dict):
        return {}
    return {NamespaceId(ns): folders for ns, folders in found.items() if isinstance(folders, list)}


def _number(found: object) -> float:
    return float(found) if isinstance(found, int) else float("-inf")


def _unusable(path: Path, problem: str) -> ConfigError:
    return ConfigError(_FIELD, str(path), problem, "name a file that may be written over")
