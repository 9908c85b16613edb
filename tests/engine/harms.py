"""The table of all that can happen to a shard, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.engine.recovery_bench import PARTS, SHORT_S, Bench
from tests.faults.proxy import Action, Cut, Drop, Fail, Hold

# ------------------------------------------------------------------------ the table
Harm = Callable[[Bench, Sequence[str], Sequence[int]], None]


def each(change: Callable[[bytes], bytes]) -> Harm:
    """Rewrite the stored shards."""

    def harm(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
        for index in indices:
            bench.write(keys[index], change(bench.read(keys[index])))

    return harm


def answered(make: Callable[[], Action]) -> Harm:
    """Let GETs of these shards go wrong on the way."""

    def harm(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
        for index in indices:
            bench.proxy.inject(make(), method="GET", part=keys[index])

    return harm


def deleted(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    for index in indices:
        bench.delete(keys[index])


def foreign(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    for index in indices:
        bench.write(keys[index], bench.donor(index))


def gone(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    bench.proxy.vanish()


def flipped(at: int) -> Callable[[bytes], bytes]:
    """at: index of the byte, from the end if negative."""

    def change(body: bytes) -> bytes:
        harmed = bytearray(body)
        harmed[at] ^= 0x10
        return bytes(harmed)

    return change


@dataclass(frozen=True)
class Kind:
    """lost: the archive's copy is bad, so whoever recomputes the chunk writes it anew.

    deadline_s: where only the deadline ends it; then an earlier chunk may be late as well.
    """

    harm: Harm
    lost: bool
    deadline_s: float | None = None


KINDS = {
    "deleted": Kind(deleted, lost=True),
    "empty": Kind(each(lambda body: b""), lost=True),
    "truncated": Kind(each(lambda body: body[: len(body) // 2]), lost=True),
    "data byte flipped": Kind(each(flipped(-40_000)), lost=True),
    "header byte flipped": Kind(each(flipped(300)), lost=True),
    "longer": Kind(each(lambda body: body + bytes(4096)), lost=True),
    "of another chunk": Kind(foreign, lost=True),
    "500": Kind(answered(Fail), lost=False),
    "503": Kind(answered(lambda: Fail(503, "SlowDown")), lost=False, deadline_s=SHORT_S),
    "silent": Kind(answered(Hold), lost=False, deadline_s=SHORT_S),
    "connection closed": Kind(answered(Drop), lost=False),
    "body cut": Kind(answered(Cut), lost=False),
    "server gone": Kind(gone, lost=False),
}
CASES = [
    pytest.param(KINDS[kind], PARTS[part], id=f"{kind}, {part}")
    for kind in KINDS
    for part in (PARTS if kind != "server gone" else ("all",))
]
