"""Fences, reports and copies for tests of the copier."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from s3kv.device.copier import Copier

BLOCKS, LAYERS, PAGE = 8, 2, 64
BLOCK_BYTES = LAYERS * PAGE
WAIT_S = 20.0


@dataclass
class Gate:
    """A fence that passes when told to."""

    opened: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)

    def query(self) -> bool:
        self.asked.set()
        return self.opened.is_set()


class BrokenFence:
    def query(self) -> bool:
        raise RuntimeError("device lost")


@dataclass
class Reports:
    """What on_done was told, in order, and by which thread."""

    heard: list[tuple[str, object]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def of(self, name: str) -> list[object]:
        return [what for who, what in self.heard if who == name]

    def note(self, name: str, what: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.heard.append((name, what))


def buffer_of(value: int, block_count: int = 1) -> torch.Tensor:
    return torch.full((block_count * BLOCK_BYTES,), value, dtype=torch.uint8)


def stage(
    copier: Copier, reports: Reports, name: str, block: int = 0, after: Gate | None = None
) -> torch.Tensor:
    out = buffer_of(0xA5)
    copier.stage([block], out, after, lambda error: reports.note(name, error))
    return out


def deliver(
    copier: Copier, reports: Reports, name: str, block: int = 0, after: Gate | None = None
) -> None:
    copier.deliver(
        [block], buffer_of(77), after, lambda: True, lambda outcome: reports.note(name, outcome)
    )
