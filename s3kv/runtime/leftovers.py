"""What a namespace holds beside shards and index: quarantined shards, and uploads nobody ended.

Only names that are exactly ours are touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from s3kv.bucket.base import ObjectInfo, ObjectStore, UploadInfo
from s3kv.core import keys
from s3kv.core.ids import NamespaceId

DELETE_MAX: Final = 1_000

_PARSERS: Final = (
    keys.parse_shard_key,
    keys.parse_quarantine_key,
    keys.parse_run_key,
    keys.parse_tick_key,
    keys.parse_segment_key,
    keys.parse_set_key,
)


async def old_uploads(
    store: ObjectStore, ns: NamespaceId, age_s: float, timeout_s: float
) -> list[UploadInfo]:
    """Unfinished uploads of our names, begun at least age_s ago by the store's clock."""
    found = await store.list_uploads(f"{keys.check_namespace_id(ns)}/", timeout_s=timeout_s)
    return [each for each in found if each.age_s >= age_s and _is_ours(each.key)]


async def abort_uploads(
    store: ObjectStore, uploads: Sequence[UploadInfo], timeout_s: float
) -> None:
    """Give them up; timeout_s bounds each."""
    for upload in uploads:
        await store.abort_upload(upload, timeout_s=timeout_s)


async def old_quarantined(
    store: ObjectStore, ns: NamespaceId, age_s: float, timeout_s: float
) -> AsyncIterator[list[ObjectInfo]]:
    """Shards that were set aside at least age_s ago by the store's clock, page by page."""
    async for page in store.list(keys.quarantine_prefix(ns), timeout_s=timeout_s):
        old = [
            found
            for found in page
            if found.age_s >= age_s and keys.parse_quarantine_key(found.key) is not None
        ]
        if old:
            yield old


async def delete_quarantined(
    store: ObjectStore, found: Sequence[ObjectInfo], timeout_s: float
) -> set[str]:
    """Delete them; returns the keys of those that were replaced meanwhile, which stay."""
    kept: set[str] = set()
    for start in range(0, len(found), DELETE_MAX):
        part = found[start : start + DELETE_MAX]
        kept.update(await store.delete_listed(part, timeout_s=timeout_s))
    return kept


def _is_ours(key: str) -> bool:
    return any(parse(key) is not None for parse in _PARSERS)
