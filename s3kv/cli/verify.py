"""`s3kv verify URI`: are the shards what their names promise, down to the last byte if wanted?

Looks at all of a namespace's shards or at a sample; what is wrong is reported, and with `--yes`
set aside under quarantine/. Exit code 1: something is wrong or could not be checked.
"""

from __future__ import annotations

import random

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.meter import Meter, Metered
from s3kv.cli.choosing import choose_namespace, require_index
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.listing import Unread, read_namespace
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.tally import geometry_of
from s3kv.cli.verify_options import SEED_BITS, VerifyOptions, check_options
from s3kv.cli.verify_state import Verification, VerifyState, load_state
from s3kv.cli.verify_view import Verified
from s3kv.core.explaining import writer_count_of
from s3kv.core.ids import NamespaceId
from s3kv.core.sweep import FOLDERS
from s3kv.core.verifying import Choice, Shape
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool
from s3kv.runtime.verifying import Verifier, VerifySettings


async def verify(options: Options, wishes: VerifyOptions, output: Output) -> int:
    """Verify one namespace. Raises `ConfigError` for bad input, `S3KVError`."""
    settings = bucket_settings(options)
    check_options(wishes)
    uri, clock, meter = settings.address.uri, Clock(), Meter()
    started_s = clock.monotonic_s()
    seed = random.getrandbits(SEED_BITS) if wishes.seed is None else wishes.seed
    async with opened(settings) as plain:
        store = Metered(plain, meter)
        ns = await choose_namespace(store, uri, wishes.namespace)
        if wishes.yes:  # what is set aside is reported dead
            await require_index(store, uri)
        shape = await _shape(store, ns)
        verification = Verification(
            uri=uri, endpoint_url=settings.endpoint_url, namespace=ns, mode=wishes.mode
        )
        state = load_state(wishes.state, verification)
        resumed_at = state.progress.folders_done
        tool = IndexTool(store, ns, clock)
        await tool.open()
        choice = None if wishes.sample is None else Choice(wishes.sample, seed)
        await _walk(tool, shape, wishes, state, choice, output)
    verified = Verified(
        uri=uri,
        namespace=ns,
        wishes=wishes,
        seed=seed,
        tally=state.progress.tally,
        traffic=meter.snapshot(),
        duration_s=clock.monotonic_s() - started_s,
        resumed_at=resumed_at,
        unreadable_count=tool.follower.skipped_count,
    )
    exit_code = EXIT_OK if verified.is_all_good else EXIT_LIMITED
    output.answer(verified.document(exit_code), lambda: verified.show(output))
    return exit_code


async def _shape(store: ObjectStore, ns: NamespaceId) -> Shape:
    namespace = await read_namespace(store, ns)
    if isinstance(namespace, Unread):
        remedy = "nothing can be said about shards without it; s3kv ls shows what is there"
        raise ConfigError("NAMESPACE", ns, namespace.reason, remedy)
    stages = range(len(namespace.fields.layout))
    geometries = tuple(geometry_of(namespace, stage) for stage in stages)
    return Shape(ns, writer_count_of(namespace.fields), geometries)


async def _walk(
    tool: IndexTool,
    shape: Shape,
    wishes: VerifyOptions,
    state: VerifyState,
    choice: Choice | None,
    output: Output,
) -> None:
    """Walk to the end; wherever it ends, the state says how far it came."""
    settings = VerifySettings(
        depth="bodies" if wishes.deep else "headers",
        bad="quarantine" if wishes.yes else "report",
    )
    progress = state.progress
    # A sample is looked at when all folders are listed.
    total = len(FOLDERS) + (wishes.sample or 0)
    with output.bar("verifying", total) as tell:

        def on_step() -> None:
            chosen_count = 0 if choice is None else verifier.looked_count
            text = f"{verifier.looked_count:,} shards, {verifier.bad_count:,} bad"
            tell(progress.finished_count + chosen_count, text)
            state.save_if_due(tool.clock.monotonic_s())

        verifier = Verifier(tool, shape, settings, on_step)
        try:
            await verifier.walk(progress, choice)
        finally:
            state.save()
