"""Objects as a whole: deleted, deleted unless they changed, copied inside the store.

No store is believed to honour an ETag before it has been seen to do so: one that ignores the ETags
in a batch deletes everything. How it deletes what is still the listed upload, and nothing else, is
found out by `capabilities.find_conditional_delete`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from s3kv.bucket.base import ConditionalDelete, ObjectInfo, ObjectStore, check_copied_size
from s3kv.bucket.capabilities import DeleteListed, find_conditional_delete
from s3kv.bucket.errors_map import error_status, is_missing
from s3kv.bucket.s3_session import S3Session, etag_of

DELETE_KEYS = 1000
"""S3's limit on the names in one DeleteObjects."""

PARALLEL_MAX = 16
"""Requests at once where each names one object: half of the client's connections."""

_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})


class Upkeep:
    """What `S3Store` does with objects as a whole. Owned by one event loop."""

    def __init__(self, session: S3Session, store: ObjectStore) -> None:
        """store: the plain store on this session, for the trial."""
        self._session = session
        self._store = store
        self._bucket = session.bucket
        self._name_of = session.address.name_of
        self._finding = asyncio.Lock()
        self._way: ConditionalDelete | None = None

    # ------------------------------------------------------------------------- delete
    async def delete(self, keys: Sequence[str], timeout_s: float) -> None:
        """Up to 1000 keys a request, all within timeout_s."""
        names = [self._name_of(key) for key in keys]
        async with self._session.talk(f"DELETE of {len(names)} keys", timeout_s) as client:
            if len(names) == 1:
                await client.delete_object(Bucket=self._bucket, Key=names[0])
            else:
                await delete_many(client, self._bucket, [{"Key": name} for name in names])

    async def conditional_delete(self, timeout_s: float) -> ConditionalDelete:
        """See `ObjectStore`. A trial that fails raises why, and is made again the next time."""
        async with (
            self._session.talk("trial of conditional deletes", timeout_s) as client,
            self._finding,
        ):
            if self._way is None:
                ways: dict[ConditionalDelete, DeleteListed] = {
                    "batch": partial(self._delete_batch, client),
                    "single": partial(self._delete_singles, client),
                }
                found = await find_conditional_delete(self._store, ways, timeout_s=timeout_s)
                self._way = found
            return self._way

    async def delete_listed(self, found: Sequence[ObjectInfo], timeout_s: float) -> Sequence[str]:
        """See `ObjectStore`; all within timeout_s."""
        names = [self._name_of(each.key) for each in found]
        told = [each for each in found if each.etag]
        kept = {each.key for each in found if not each.etag}
        async with self._session.talk(f"DELETE of {len(names)} listed", timeout_s) as client:
            match await self.conditional_delete(timeout_s) if told else None:
                case "batch":
                    kept |= await self._delete_batch(client, told)
                case "single":
                    kept |= await self._delete_singles(client, told)
                case "none":
                    kept |= await self._look_and_delete(client, told)
        return [each.key for each in found if each.key in kept]

    async def _delete_batch(self, client: Any, found: Sequence[ObjectInfo]) -> set[str]:
        objects = [{"Key": self._name_of(one.key), "ETag": f'"{one.etag}"'} for one in found]
        names = await delete_many(client, self._bucket, objects, "PreconditionFailed")
        refused = [each for each in found if self._name_of(each.key) in names]
        return await _keys_where(partial(self._is_there, client), refused)

    async def _delete_singles(self, client: Any, found: Sequence[ObjectInfo]) -> set[str]:
        async def is_kept(each: ObjectInfo) -> bool:
            name, etag = self._name_of(each.key), f'"{each.etag}"'
            try:
                await client.delete_object(Bucket=self._bucket, Key=name, IfMatch=etag)
            except ClientError as error:
                if error_status(error) == 412:
                    return await self._is_there(client, each)
                if not is_missing(error):
                    raise
            return False

        return await _keys_where(is_kept, found)

    async def _look_and_delete(self, client: Any, found: Sequence[ObjectInfo]) -> set[str]:
        async def is_kept(each: ObjectInfo) -> bool:
            head = await self._head(client, each.key)
            if head is None or etag_of(head) != each.etag:
                return head is not None
            await client.delete_object(Bucket=self._bucket, Key=self._name_of(each.key))
            return False

        return await _keys_where(is_kept, found)

    async def _is_there(self, client: Any, refused: ObjectInfo) -> bool:
        # Some stores refuse an absent object as they refuse one with another ETag.
        return await self._head(client, refused.key) is not None

    async def _head(self, client: Any, key: str) -> Mapping[str, Any] | None:
        try:
            head: Mapping[str, Any] = await client.head_object(
                Bucket=self._bucket, Key=self._name_of(key)
            )
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        return head

    # --------------------------------------------------------------------------- copy
    async def copy(self, source: ObjectInfo, key: str, timeout_s: float) -> bool:
        """See `ObjectStore`. Looks first: not every store honours the condition of a copy."""
        check_copied_size(source)
        where = {"Bucket": self._bucket, "Key": self._name_of(source.key)}
        name = self._name_of(key)
        async with self._session.talk(f"copy of {source.key} to {key}", timeout_s) as client:
            head = await self._head(client, source.key)
            if head is None or not source.etag or etag_of(head) != source.etag:
                return False
            asked: dict[str, Any] = {"CopySource": where, "CopySourceIfMatch": f'"{source.etag}"'}
            if name == where["Key"]:
                # S3 copies nothing onto itself unless told to change something.
                kept = {part: head[part] for part in ("ContentType", "Metadata") if part in head}
                asked |= {"MetadataDirective": "REPLACE", **kept}
            try:
                await client.copy_object(Bucket=self._bucket, Key=name, **asked)
            except ClientError as error:
                if is_missing(error) or error_status(error) == 412:
                    return False
                raise
        return True


async def delete_many(
    client: Any, bucket: str, objects: Sequence[Mapping[str, str]], changed: str = ""
) -> set[str]:
    """DeleteObjects in batches; names that were refused with the code `changed`.

    What is gone already is no refusal; any other raises `ClientError`.
    """
    kept = set()
    for start in range(0, len(objects), DELETE_KEYS):
        asked = {"Objects": objects[start : start + DELETE_KEYS], "Quiet": True}
        reply = await client.delete_objects(Bucket=bucket, Delete=asked)
        for refused in reply.get("Errors", ()):
            code = refused.get("Code")
            if changed and code == changed:
                kept.add(refused["Key"])
            elif code not in _GONE:
                raise ClientError({"Error": refused, "ResponseMetadata": {}}, "Delete")
    return kept


async def _keys_where(
    holds: Callable[[ObjectInfo], Awaitable[bool]], found: Sequence[ObjectInfo]
) -> set[str]:
    """Keys of those for which it holds, `PARALLEL_MAX` at a time; raises the first failure."""
    room = asyncio.Semaphore(PARALLEL_MAX)

    async def ask(each: ObjectInfo) -> bool:
        async with room:
            return await holds(each)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(each)) for each in found]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {each.key for each, task in zip(found, tasks, strict=True) if task.result()}
