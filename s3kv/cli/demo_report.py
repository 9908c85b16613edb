"""What the demo measured, what it must show, and how it is printed. Pure but for the printing."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

MIN_PROMPT_TOKENS = 6_000
MIN_HIT_SHARE = 0.95
MIN_TTFT_RATIO = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The content of `demo.json`."""

    prompt_tokens: int
    cold_ttft_s: float
    warm_ttft_s: float
    local_ttft_s: float
    damaged_ttft_s: float
    warm_external_tokens: int
    damaged_external_tokens: int
    warm_equals_local_hit: bool
    damaged_equals_cold: bool
    bytes_archived: int
    shards: int
    requests: dict[str, int]
    """Requests that the engines made in all phases, by kind."""
    answer: str

    @property
    def ttft_ratio(self) -> float:
        """How many times sooner the first token came."""
        return self.cold_ttft_s / max(self.warm_ttft_s, 1e-9)

    @property
    def hit_share(self) -> float:
        """Part of the prompt that came from the archive."""
        return self.warm_external_tokens / max(self.prompt_tokens, 1)

    def document(self) -> dict[str, object]:
        """Fields and derived numbers, ready for JSON."""
        return {**asdict(self), "ttft_ratio": self.ttft_ratio, "hit_share": self.hit_share}


def problems(measured: Measured) -> list[str]:
    """Every promise of the demo that this run did not keep, in words; empty when all held."""
    found = []
    if measured.prompt_tokens < MIN_PROMPT_TOKENS:
        found.append(f"the prompt has {measured.prompt_tokens} tokens, not {MIN_PROMPT_TOKENS:,}")
    if measured.warm_external_tokens == 0:
        found.append("the restarted engine found nothing in the archive")
    elif measured.hit_share < MIN_HIT_SHARE:
        found.append(f"only {measured.hit_share:.1%} of the prompt came from the archive")
    if not measured.warm_equals_local_hit:
        found.append("the answer after loading differs from the one after a local cache hit")
    if not measured.damaged_equals_cold:
        found.append("the answer beside the damaged shard differs from the cold one")
    if measured.ttft_ratio < MIN_TTFT_RATIO:
        found.append(
            f"first token only {measured.ttft_ratio:.1f} times sooner (goal {MIN_TTFT_RATIO:.0f}); "
            "a busy machine or a slow disk can cause this"
        )
    return found


def show(measured: Measured, console: Console) -> None:
    """Print the run as a table and a few lines."""
    table = Table(title=f"The same prompt of {measured.prompt_tokens:,} tokens, four times")
    for heading in ("engine process", "from the archive", "first token", "same tokens"):
        table.add_column(heading, justify="left" if heading == "engine process" else "right")
    same = {True: "[green]yes[/]", False: "[red]NO[/]"}
    rows = (
        ("1  cold: computes and archives", "-", measured.cold_ttft_s, ""),
        (
            "2  restarted: loads",
            f"{measured.warm_external_tokens:,}",
            measured.warm_ttft_s,
            f"as local hit: {same[measured.warm_equals_local_hit]}",
        ),
        ("2  again: its own prefix cache", "-", measured.local_ttft_s, ""),
        (
            "3  first shard damaged: recomputes",
            f"{measured.damaged_external_tokens:,}",
            measured.damaged_ttft_s,
            f"as cold: {same[measured.damaged_equals_cold]}",
        ),
    )
    for name, tokens, ttft_s, verdict in rows:
        table.add_row(name, tokens, f"{ttft_s:.2f} s", verdict)
    console.print(table)
    console.print(
        f"First token {measured.ttft_ratio:.1f} times sooner after a restart; "
        f"{measured.hit_share:.1%} of the prompt from the archive."
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in measured.requests.items()) or "unknown"
    console.print(
        f"Archive: {measured.shards} shards, {measured.bytes_archived / 2**20:.0f} MiB; "
        f"requests of all engines: {kinds}."
    )
    console.print(f"The model's answer began: {measured.answer!r}")
