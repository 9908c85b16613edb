"""The stated bounds of the index, in words and with their price, for `doctor` and `pause`.

All intervals are the defaults that an engine runs with, read from where it reads them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from s3kv.cli.output import Document, Output
from s3kv.core.bounds import (
    REQUEST_S,
    MonthlyPrice,
    Pace,
    Staleness,
    monthly_price,
    staleness,
)
from s3kv.core.sequencer import SequencerSettings
from s3kv.runtime.index_client import IndexSettings

POLLER_COUNT: Final = 2
"""Processes of one engine that follow the index: the scheduler's, and its worker's."""

PRICES_OF: Final = "requests at the list prices of S3 Standard in us-east-1"

MEANING: Final = {
    "busy": "while some engine commits at least once a minute",
    "quiet": "after a minute without news, or when the engine that led has just died",
    "abandoned": "nobody leads, and the engine that wrote the news has died as well",
    "paused": "from the end of s3kv pause or resume until every engine that runs obeys",
    "view": "an older view answers nothing: objects are looked for by name, else it is a miss",
}


def default_pace(request_s: float = REQUEST_S) -> Pace:
    """What an engine runs with when nothing is set. request_s: one request to this store."""
    index, sequencer = IndexSettings(), SequencerSettings()
    return Pace(
        poll_interval_s=index.poll_interval_s,
        head_ttl_s=index.head_ttl_s,
        commit_interval_s=sequencer.interval_min_ms / 1_000,
        fold_busy_s=sequencer.fold_busy_s,
        fold_idle_s=sequencer.fold_idle_s,
        patience_s=sequencer.patience_s,
        patience_spread_s=sequencer.patience_spread_s,
        recheck_min_s=sequencer.recheck_min_s,
        inbox_check_s=sequencer.inbox_check_s,
        request_s=request_s,
    )


def bounds_document(pace: Pace) -> Document:
    """Bounds, their prices, and what they are computed from."""
    return {
        "staleness": asdict(staleness(pace)),
        "monthly_price": asdict(monthly_price(pace, POLLER_COUNT)),
        "meaning": MEANING,
        "price_basis": PRICES_OF,
        "pace": {**asdict(pace), "pollers_per_engine": POLLER_COUNT},
    }


def show_bounds(pace: Pace, output: Output) -> None:
    """Two blocks: how late, how dear."""
    output.pairs("An engine knows what others archived, and lost, after", _late_pairs(pace))
    output.line()
    output.pairs(f"That costs, in USD a month ({PRICES_OF})", _price_pairs(pace))


def _late_pairs(pace: Pace) -> list[tuple[str, str]]:
    late: Staleness = staleness(pace)
    seconds = {
        "busy": f"{late.busy_worst_s:.1f} s at worst, {late.busy_typical_s:.1f} s typically",
        "quiet": f"{late.quiet_worst_s:.1f} s at worst",
        "abandoned": f"{late.abandoned_worst_s:.1f} s at worst",
        "paused": f"{late.paused_worst_s:.1f} s at worst",
        "view": f"{late.view_worst_s:.0f} s old at most",
    }
    return [(name, f"{text}: {MEANING[name]}") for name, text in seconds.items()]


def _price_pairs(pace: Pace) -> list[tuple[str, str]]:
    price: MonthlyPrice = monthly_price(pace, POLLER_COUNT)
    poll, look = f"{pace.poll_interval_s:g} s", f"{pace.inbox_check_s:g} s"
    idle, busy = price.folding_idle_usd, price.folding_busy_usd
    return [
        (
            "following",
            f"{price.following_usd:.2f} per engine: {POLLER_COUNT} processes, a GET every {poll}",
        ),
        ("watching", f"{price.watching_usd:.2f} per engine: a LIST of the inbox every {look}"),
        (
            "committing",
            f"{price.committing_usd:.2f} per engine that saves without a break: a commit every "
            f"{pace.commit_interval_s:g} s",
        ),
        ("folding", f"{idle:.2f} idle, {busy:.2f} busy: of the one engine that leads"),
    ]
