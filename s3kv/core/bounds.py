"""How far an engine's view of the index may lag behind, and what that costs. Pure arithmetic.

A bound is the sum of the longest waits on the way of a record: for its writer's next commit, for
the next fold, for the reader's next poll, and of a number of requests. Protocol and names of the
waits: docs/adr/0002-index-on-the-bucket.md. The prices are list prices of requests, not a bill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MONTH_S: Final = 730 * 3_600
GET_USD: Final = 0.40 / 1_000_000
"""GET and HEAD, also those that find nothing; us-east-1, S3 Standard."""
PUT_USD: Final = 5.00 / 1_000_000
"""PUT, COPY and LIST."""

REQUEST_S: Final = 0.1
"""Allowance for one request where nobody has measured it: ten times what a near store takes."""

AGE_ROUNDING_S: Final = 1.0
"""Stores tell ages in whole seconds."""

_COMMIT_REQUESTS: Final = 5  # segment, LIST, GET of it, tick, the reader's GET
_TAKE_OVER_REQUESTS: Final = _COMMIT_REQUESTS + 1  # and the LIST that finds it waiting
_PAUSE_REQUESTS: Final = 2  # tick, the reader's GET


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The intervals of a fleet, as `IndexSettings` and `SequencerSettings` have them.

    commit_interval_s: between two commits of one engine; request_s: allowance for one request.
    """

    poll_interval_s: float
    head_ttl_s: float
    commit_interval_s: float
    fold_busy_s: float
    fold_idle_s: float
    patience_s: float
    patience_spread_s: float
    recheck_min_s: float
    inbox_check_s: float
    request_s: float = REQUEST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Seconds until every engine that follows knows; view_s: an older view answers nothing.

    busy: while somebody commits every minute; quiet: after an idle minute, or when the leading
    engine has died; abandoned: nobody leads, and who wrote the record has died too; paused: from
    the change of a pause to its being obeyed.
    """

    busy_typical_s: float
    busy_worst_s: float
    quiet_worst_s: float
    abandoned_worst_s: float
    paused_worst_s: float
    view_worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyPrice:
    """Dollars a month. following, watching: of every engine, idle or not; committing: of an engine
    that commits whenever it may; folding: of the one engine that leads.
    """

    following_usd: float
    watching_usd: float
    committing_usd: float
    folding_idle_usd: float
    folding_busy_usd: float


def staleness(pace: Pace) -> Staleness:
    """The bounds at this pace, for news of both kinds: there is a chunk, and there is none."""
    waits_s = pace.commit_interval_s + pace.fold_busy_s + pace.poll_interval_s
    commit_s = _COMMIT_REQUESTS * pace.request_s
    idle_s = pace.fold_idle_s + pace.poll_interval_s + commit_s
    take_over_s = (
        # The leader may die right after it folded this writer's commit before, and its last tick
        # come in just after the new commit: patience begins then. The other poll is the reader's.
        pace.commit_interval_s
        + pace.patience_s
        + pace.patience_spread_s
        + AGE_ROUNDING_S
        + pace.recheck_min_s
        + 2 * pace.poll_interval_s
        + _TAKE_OVER_REQUESTS * pace.request_s
    )
    return Staleness(
        busy_typical_s=waits_s / 2 + commit_s,
        busy_worst_s=waits_s + commit_s,
        quiet_worst_s=max(idle_s, take_over_s),
        abandoned_worst_s=pace.inbox_check_s + take_over_s,
        paused_worst_s=pace.poll_interval_s + _PAUSE_REQUESTS * pace.request_s,
        view_worst_s=pace.head_ttl_s,
    )


def monthly_price(pace: Pace, poller_count: int) -> MonthlyPrice:
    """What the pace costs. poller_count: processes of one engine that follow the index."""
    return MonthlyPrice(
        following_usd=poller_count * MONTH_S / pace.poll_interval_s * GET_USD,
        watching_usd=MONTH_S / pace.inbox_check_s * PUT_USD,
        committing_usd=MONTH_S / pace.commit_interval_s * (PUT_USD + GET_USD),
        folding_idle_usd=MONTH_S / pace.fold_idle_s * PUT_USD,
        folding_busy_usd=MONTH_S / pace.fold_busy_s * 2 * PUT_USD,
    )
