"""What the doctor says of one check, and the decisions behind the words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from s3kv.bucket.capabilities import Capabilities
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, EXIT_UNUSABLE

State: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

SKEW_NOTED_S: Final = 60.0
"""Beyond this the order of uses and losses may flip between machines; S3 refuses at 900 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check. warning: usable with limits; failed: not usable.

    numbers: what was measured, with units in the names.
    """

    check: str
    state: State
    says: str
    remedy: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


_REMEDIES: Final[Mapping[str, str]] = {
    "write": "allow s3:PutObject under the prefix if this engine is to save",
    "conditional PUT": "use a store that supports PUT with If-None-Match: *; without it there is "
    "no index, ttl_s and max_bytes are not kept, and each lookup asks the bucket",
    "ranged GET": "use a store that supports ranged GET",
    "list": "use a store whose listings show new objects at once",
    "delete": "allow s3:DeleteObject under the prefix; without it there is no index, ttl_s and "
    "max_bytes are not kept, and each lookup asks the bucket",
}


def capability_findings(found: Capabilities) -> list[Finding]:
    """What the engine's own probe saw, check by check."""
    if not found.readable:
        problem = "; ".join(found.problems)
        remedy = "check --endpoint-url, the network and the name service, then try again"
        return [Finding(check="read", state="failed", says=problem, remedy=remedy)]
    seen: list[tuple[str, bool, str]] = [
        ("write", found.writable, "a small object was written"),
        ("conditional PUT", found.conditional_put, "created once, refused the second time"),
        ("ranged GET", found.ranged_get, "the bytes asked for, and no others"),
        ("list", found.listing, "a new object is listed at once"),
        ("delete", found.deletable, "a deleted object is gone"),
    ]
    if not found.writable:
        del seen[1:]  # the probe ends there
    # The probe notes exactly one problem for each thing that it did not see, in this order.
    problems = iter(found.problems)
    findings = [Finding(check="read", state="ok", says="objects can be asked for")]
    for check, works, says in seen:
        if works:
            findings.append(Finding(check=check, state="ok", says=says))
            continue
        state: State = "failed" if check == "ranged GET" else "warning"
        problem = next(problems, "not seen to work")
        findings.append(Finding(check=check, state=state, says=problem, remedy=_REMEDIES[check]))
    return findings


def clock_finding(skew_s: float) -> Finding:
    """skew_s: the store's clock minus ours; its whole seconds make it uncertain by one."""
    numbers = {"skew_s": skew_s}
    if abs(skew_s) < 2.0:
        says = "agrees with the store's to the second"
        return Finding(check="clock", state="ok", says=says, numbers=numbers)
    order = "ahead of" if skew_s > 0 else "behind"
    says = f"the store is {abs(skew_s):.0f} s {order} this machine"
    if abs(skew_s) < SKEW_NOTED_S:
        return Finding(check="clock", state="ok", says=says, numbers=numbers)
    remedy = "set this machine's clock (NTP): S3 refuses requests that are 15 minutes off"
    return Finding(check="clock", state="warning", says=says, remedy=remedy, numbers=numbers)


def exit_code_of(findings: Sequence[Finding]) -> int:
    """2 if an engine cannot use this place, 1 if it can with limits, else 0."""
    states = {finding.state for finding in findings}
    if "failed" in states:
        return EXIT_UNUSABLE
    return EXIT_LIMITED if "warning" in states else EXIT_OK


def engine_words(findings: Sequence[Finding]) -> str:
    """What an engine would do with this place."""
    state = {finding.check: finding.state for finding in findings}
    if "failed" in state.values():
        return (
            "An engine would start, say once why it cannot use this store, and compute every "
            "prompt itself."
        )
    if state.get("write") != "ok":
        return "An engine would load what is archived here and save nothing: no write succeeded."
    if "warning" in (state.get("conditional PUT"), state.get("delete")):
        return (
            "An engine would load from here and save to it without an index: chunks are found by "
            "requests for their names, and only a lifecycle rule forgets."
        )
    limits = []
    if state.get("multipart upload") == "warning":
        limits.append("large shards would not be saved")
    if state.get("list") == "warning":
        limits.append("an index might be opened without its newest part")
    but = f", but {', '.join(limits)}" if limits else ""
    return f"An engine would load from here and save to it{but}."
