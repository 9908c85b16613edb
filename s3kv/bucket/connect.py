"""From settings to a store that everybody else uses: S3, counted, repeated.

Importing this module loads no SDK; `connect` does, and still opens nothing: the first call looks
for credentials and connects.
"""

from __future__ import annotations

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.meter import Meter, Metered, MultipartSizes
from s3kv.bucket.prefix import BucketAddress, parse_uri
from s3kv.bucket.retry import Retrying, RetryPolicy
from s3kv.bucket.settings import BucketSettings

__all__ = ["BucketAddress", "BucketSettings", "RetryPolicy", "connect", "parse_uri"]


def connect(
    settings: BucketSettings,
    *,
    guard_thread_prefix: str | None = None,
    meter: Meter | None = None,
) -> ObjectStore:
    """A store on `settings.address`: `Retrying(Metered(S3Store))`.

    guard_thread_prefix: requests from threads of other names raise `WrongThread` (engines pass
    `s3kv-`); meter: counts every attempt, for the caller to read. Never creates a bucket.
    """
    from s3kv.bucket.s3 import S3Store

    store = S3Store(settings, guard_thread_prefix=guard_thread_prefix)
    sizes = MultipartSizes(settings.multipart_bytes, settings.part_bytes)
    return Retrying(Metered(store, meter, multipart=sizes), settings.retry)
