"""From settings to the clients of one process: the store, the index and their bounds."""

from __future__ import annotations

import logging

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.connect import BucketSettings, connect, parse_uri
from s3kv.bucket.meter import Meter
from s3kv.config import Settings
from s3kv.core.geometry import ShardGeometry
from s3kv.runtime.index_client import IndexSettings
from s3kv.runtime.loop import THREAD_PREFIX, LoopThread

logger = logging.getLogger(__name__)

HOUR_S = 3600
BODY_THREADS = 8
"""GETs and PUTs of shards in flight per process."""


def bucket_settings(settings: Settings) -> BucketSettings:
    """The part of the settings that concerns the bucket. Raises `ConfigError` on a bad URI."""
    return BucketSettings(
        address=parse_uri(settings.uri),
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        profile=settings.profile,
        addressing_style=settings.addressing_style,
        checksum_mode=settings.checksum_mode,
        body_threads=BODY_THREADS,
    )


def make_store(settings: Settings, meter: Meter) -> ObjectStore:
    """A store whose requests only ever leave from our own threads, counted by `meter`."""
    return connect(bucket_settings(settings), guard_thread_prefix=THREAD_PREFIX, meter=meter)


def close_store(loop: LoopThread, store: ObjectStore, timeout_s: float) -> None:
    """Close the store on its loop, then the loop, each within a bound."""
    try:
        loop.submit(store.close()).result(timeout=timeout_s)
    except TimeoutError:
        logger.warning("s3kv: the store did not close within %.1f s", timeout_s)
    loop.close(timeout_s)


def index_settings(settings: Settings, geometry: ShardGeometry, writer_count: int) -> IndexSettings:
    """Bounds of the index clients; bytes_per_block counts all writers' shards."""
    return IndexSettings(
        ttl_s=settings.ttl_s,
        max_bytes=settings.max_bytes,
        bytes_per_block=geometry.block_bytes * writer_count,
    )


def touch_s(settings: Settings) -> int:
    """Age at which a last use is refreshed: well inside the time to live, at most hourly."""
    return min(HOUR_S, settings.ttl_s // 4) if settings.ttl_s is not None else HOUR_S
