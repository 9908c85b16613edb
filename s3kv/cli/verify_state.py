"""How far a verification has come, in a file: one that was killed goes on where it was.

What it found is in there too, so that the end reports all of it. A file of something else is
refused and never written over; that of a verification that came to its end begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from s3kv.cli.files import replace_file
from s3kv.core.sweep import FOLDERS
from s3kv.core.verified import Progress, Tally
from s3kv.errors import ConfigError

SAVE_INTERVAL_S: Final = 5.0

_FIELD: Final = "--state"


class Verification(BaseModel):
    """What makes two runs parts of one. mode: which bytes are looked at, and what is done then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str
    endpoint_url: str | None
    namespace: str
    mode: str


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal["s3kv-verify-state/1"] = "s3kv-verify-state/1"
    verification: Verification
    folders_done: int = Field(ge=0, le=len(FOLDERS))
    done: bool
    tally: Tally


@dataclass(slots=True)
class VerifyState:
    """A progress and where it is kept; path: None for nowhere."""

    path: Path | None
    verification: Verification
    progress: Progress = field(default_factory=Progress)
    _saved_count: int = -1
    _saved_s: float = float("-inf")

    def save_if_due(self, now_s: float) -> None:
        """Save if there is something new, but not all the time. now_s: monotonic seconds."""
        is_new = self.progress.folders_done != self._saved_count
        if is_new and now_s - self._saved_s >= SAVE_INTERVAL_S:
            self.save()
            self._saved_s = now_s

    def save(self) -> None:
        """Write the file. Raises `ConfigError` if that cannot be."""
        if self.path is None:
            return
        document = _Document(
            verification=self.verification,
            folders_done=self.progress.folders_done,
            done=self.progress.is_done,
            tally=self.progress.tally,
        )
        try:
            replace_file(self.path, document.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise _unusable(self.path, f"cannot be written ({error.strerror})") from None
        self._saved_count = self.progress.folders_done


def load_state(path: Path | None, verification: Verification) -> VerifyState:
    """Where it stands, and that this can be written down. Raises `ConfigError` if it cannot."""
    state = VerifyState(path, verification)
    document = None if path is None else _read(path)
    if path is not None and document is not None:
        if document.verification != verification:
            raise _unusable(path, _difference(document.verification, verification))
        if not document.done:
            state.progress = Progress(document.folders_done, document.tally)
    state.save()
    return state


def _read(path: Path) -> _Document | None:
    try:
        return _Document.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from None
    except ValidationError:
        raise _unusable(path, "not the state of a verification") from None


def _difference(found: Verification, wanted: Verification) -> str:
    before, now = found.model_dump(), wanted.model_dump()
    name = next(name for name in now if before[name] != now[name])
    return f"is of a verification with {name} {before[name]}, not {now[name]}"


def _unusable(path: Path, problem: str) -> ConfigError:
    return ConfigError(_FIELD, str(path), problem, "name another file, or delete this one")
