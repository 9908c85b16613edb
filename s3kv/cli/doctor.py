"""`s3kv doctor URI`: can an engine use this bucket, and if not, what has to change.

Runs the checks of `cli.checks` and says the outcome in words and as an exit code: 0 all good,
1 usable with limits, 2 unusable. Says as well how late engines learn of each other here, and what
that costs. Never creates a bucket and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from s3kv.bucket.connect import BucketSettings, connect
from s3kv.bucket.settings import MIB
from s3kv.cli.bounds_view import bounds_document, default_pace, show_bounds
from s3kv.cli.checks import PART_BYTES, Examination, Stores
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, EXIT_UNUSABLE, bucket_settings
from s3kv.cli.findings import Finding, engine_words, exit_code_of
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.sdk_view import SdkView
from s3kv.core.bounds import REQUEST_S, Pace
from s3kv.runtime.clock import Clock

SHARD_ADVICE: Final = (
    "Advised shard size: 4-64 MiB, set by chunk_tokens. At the default of 256 tokens a shard is "
    "32 MiB for an 8B model, 10 MiB per rank for a 70B model at TP 8, 5.9 MB for SmolLM2-135M."
)
_VERDICTS: Final = {EXIT_OK: "ready", EXIT_LIMITED: "limited", EXIT_UNUSABLE: "unusable"}


async def doctor(options: Options, output: Output) -> int:
    """Examine the place and print the findings. Raises `ConfigError` on bad input."""
    settings = bucket_settings(options)
    with output.progress("examining:") as tell:
        findings = await examine(settings, tell)
    exit_code = exit_code_of(findings)
    document = _document(settings, findings, exit_code)
    output.answer(document, lambda: _show(settings, findings, output))
    return exit_code


async def examine(
    settings: BucketSettings, on_check: Callable[[str], None] = lambda check: None
) -> tuple[Finding, ...]:
    """Connect, run every check, close."""
    mode = settings.checksum_mode
    stores = Stores(
        settings,
        usual=connect(settings),
        parts=connect(replace(settings, multipart_bytes=PART_BYTES, part_bytes=PART_BYTES)),
        other_mode=connect(
            replace(
                settings,
                checksum_mode="when_required" if mode == "when_supported" else "when_supported",
            )
        ),
        sdk=SdkView(settings),
    )
    try:
        return await Examination(stores, Clock(), on_check).run()
    finally:
        for store in (stores.usual, stores.parts, stores.other_mode, stores.sdk):
            if store is not None:
                await store.close()


def _document(settings: BucketSettings, findings: Sequence[Finding], exit_code: int) -> Document:
    return {
        "uri": settings.address.uri,
        "endpoint_url": settings.endpoint_url,
        "exit_code": exit_code,
        "verdict": _VERDICTS[exit_code],
        "engine": engine_words(findings),
        "checks": [asdict(finding) for finding in findings],
        "advised_shard_bytes": [4 * MIB, 64 * MIB],
        "bounds": bounds_document(pace_of(findings)),
    }


def pace_of(findings: Sequence[Finding]) -> Pace:
    """The default intervals; a request takes what it takes to this store, if that is more."""
    measured_s = [f.numbers["head_median_s"] for f in findings if "head_median_s" in f.numbers]
    return default_pace(max(REQUEST_S, *measured_s, 0.0))


def _show(settings: BucketSettings, findings: Sequence[Finding], output: Output) -> None:
    output.line(f"{settings.address.uri} at {settings.endpoint_url or 'AWS'}", "bold")
    columns = (Column("check"), Column("state"), Column("what was seen"))
    output.table(columns, [(found.check, found.state, found.says) for found in findings])
    remedies = [(found.check, found.remedy) for found in findings if found.remedy]
    if remedies:
        output.line()
        output.pairs("What to do", remedies)
    output.line()
    output.line(engine_words(findings), "bold")
    if exit_code_of(findings) != EXIT_UNUSABLE:
        output.line(SHARD_ADVICE)
        output.line()
        show_bounds(pace_of(findings), output)
