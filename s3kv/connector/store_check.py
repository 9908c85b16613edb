"""The start-up look at the store: what it can do, in one line of the log."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import PROBE_PREFIX, Capabilities, probe_capabilities
from s3kv.config import Settings
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock

logger = logging.getLogger(__name__)

NAMES_ONLY = (
    "s3kv: %s, so there is no index: chunks are found by HEADs of their names, ttl_s and max_bytes "
    "are not kept (use a lifecycle rule), and the fleet cannot be paused"
)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
WARM_UP_S = 5.0


async def warm_up(store: ObjectStore) -> None:
    """Load the SDK and connect while the engine starts, not while its first prompt waits."""
    with contextlib.suppress(S3KVError):
        await store.stat(f"{PROBE_PREFIX}warm-up", timeout_s=WARM_UP_S)


@dataclass(frozen=True, slots=True)
class Verdict:
    """read_only: why nothing may be saved, or the empty string; names_only: whether what is saved
    cannot be listed in an index (docs/adr/0004)."""

    read_only: str = ""
    names_only: bool = False


async def look_at_store(
    store: ObjectStore, settings: Settings, namespace_id: str, clock: Clock
) -> Verdict:
    """Probe the store and say so.

    A store that does not answer is asked again, with pauses up to a minute, for as long as it
    takes: an engine must not stay a reader for life because of a blip at its start (FAULTS 20).
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            capabilities = await probe_capabilities(store)
        except S3KVError as error:
            # Said aloud once, by the scheduler side, which hears it with the next report.
            logger.info("s3kv: %s: %s: %s", settings.uri, type(error).__name__, error)
            return Verdict(read_only=f"{type(error).__name__}: {error}")
        if capabilities.certain:
            break
        if pause_s == FIRST_PAUSE_S:
            logger.warning("s3kv: %s; saves wait until it answers", capabilities.describe())
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    logger.info(
        "s3kv: namespace %s in %s; %s; format 1, load mode %s, save %s",
        namespace_id,
        settings.uri,
        capabilities.describe(),
        settings.load_mode,
        settings.save,
    )
    verdict = judge(capabilities)
    if verdict.names_only:
        lacks = "the store refuses deletes under this prefix (s3:DeleteObject)"
        if not capabilities.conditional_put:
            lacks = "the store has no conditional PUT (If-None-Match)"
        logger.warning(NAMES_ONLY, lacks)
    elif settings.ttl_s is None and settings.max_bytes is None:
        logger.warning("s3kv: neither ttl_s nor max_bytes is set: the archive grows without bound")
    return verdict


def judge(capabilities: Capabilities) -> Verdict:
    """What this store may be used for."""
    if not capabilities.writable:
        return Verdict(read_only="the store refuses writes under this prefix")
    return Verdict(names_only=not capabilities.carries_index)
