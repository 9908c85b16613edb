"""An S3 bucket as an `ObjectStore`: reading, writing and listing objects, by aiobotocore.

Answers that belong to the protocol (404, 412) become values, everything else goes through
`errors_map`. No request is repeated here, no bucket is ever created, and every name is joined by
`BucketAddress`. Bodies above `small_bytes` move through `bucket.bodies`; deletes, copies,
unfinished uploads and versions are the business of `s3_upkeep` and `s3_leftovers`.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from s3kv.bucket.base import (
    CREATED,
    EXISTS,
    MISSING,
    ConditionalDelete,
    Created,
    Exists,
    Missing,
    ObjectInfo,
    ObjectVersion,
    Page,
    Received,
    UploadInfo,
)
from s3kv.bucket.bodies import Bodies
from s3kv.bucket.errors_map import error_status, is_missing, translated
from s3kv.bucket.pages import listed_pages
from s3kv.bucket.prefix import check_prefix
from s3kv.bucket.s3_leftovers import Leftovers, forget_upload
from s3kv.bucket.s3_session import S3Session, date_s, info_of
from s3kv.bucket.s3_upkeep import Upkeep
from s3kv.bucket.sdk import ThreadGuard, make_body_client
from s3kv.bucket.settings import BucketSettings, part_ranges
from s3kv.errors import Corrupt, Transient

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0
ABORT_ATTEMPTS = 3


class S3Store:
    """Implements `ObjectStore` on a bucket. All coroutines belong to one event loop."""

    def __init__(self, settings: BucketSettings, *, guard_thread_prefix: str | None = None) -> None:
        """Nothing is opened yet: the first call does that.

        guard_thread_prefix: if set, a request from a thread of another name raises `WrongThread`.
        """
        self._settings = settings
        self._address = settings.address
        self._bucket = settings.address.bucket
        self.guard = None if guard_thread_prefix is None else ThreadGuard(guard_thread_prefix)
        self._session = S3Session(settings, self.guard)
        self._upkeep = Upkeep(self._session, self)
        self._leftovers = Leftovers(self._session, self)
        self._bodies = Bodies(
            self._bucket,
            lambda: make_body_client(settings, self.guard),
            thread_count=settings.body_threads,
            name_prefix="s3kv-body",
        )

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        name = self._address.name_of(key)
        async with self._session.talk(f"HEAD {key}", timeout_s) as client:
            try:
                reply = await client.head_object(Bucket=self._bucket, Key=name)
            except ClientError as error:
                if is_missing(error):
                    return MISSING
                raise
        return info_of(key, {**reply, "Size": reply["ContentLength"]}, date_s(reply))

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole. Raises `Corrupt` if it is larger than max_bytes."""
        name = self._address.name_of(key)
        async with self._session.talk(f"GET {key}", timeout_s) as client:
            try:
                reply = await client.get_object(Bucket=self._bucket, Key=name)
            except ClientError as error:
                if is_missing(error):
                    return MISSING
                raise
            async with reply["Body"] as stream:
                size = reply.get("ContentLength")
                if size is not None and size > max_bytes:
                    raise Corrupt(f"{key}: {size} bytes, at most {max_bytes} expected")
                body: bytes = await stream.read()
        if size is not None and size != len(body):
            raise Transient(f"GET {key}: {len(body)} of {size} bytes")
        if len(body) > max_bytes:
            raise Corrupt(f"{key}: {len(body)} bytes, at most {max_bytes} expected")
        return body

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Fill `buffer` from `start` on; see `ObjectStore.get_into` for what holds afterwards."""
        name = self._address.name_of(key)
        if buffer.readonly or buffer.format != "B" or not buffer.c_contiguous or start < 0:
            raise ValueError(f"get_into needs a writable uint8 buffer and start >= 0, not {start}")
        if len(buffer) == 0:
            found = await self.stat(key, timeout_s=timeout_s)
            return found if isinstance(found, Missing) else Received(0, found.size, found.etag)
        self._session.raise_if_closed(key)
        with translated(f"GET {key}", self._settings):
            return await self._bodies.fetch(name, start, buffer, timeout_s=timeout_s)

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT; the body must not change until this returns or raises."""
        name = self._address.name_of(key)
        with memoryview(body) as view:
            if view.format != "B" or not view.c_contiguous:
                raise ValueError("a body is contiguous uint8")
            if len(view) <= self._settings.small_bytes:
                async with self._session.talk(f"PUT {key}", timeout_s) as client:
                    reply = await client.put_object(Bucket=self._bucket, Key=name, Body=bytes(view))
                return str(reply["ETag"]).strip('"')
            self._session.raise_if_closed(key)
            if len(view) > self._settings.multipart_bytes:
                return await self._put_parts(key, name, view, timeout_s)
            with translated(f"PUT {key}", self._settings):
                return await self._bodies.send(name, view, timeout_s=timeout_s)

    async def _put_parts(self, key: str, name: str, body: memoryview, timeout_s: float) -> str:
        where = {"Bucket": self._bucket, "Key": name}
        async with self._session.talk(f"multipart PUT {key}", timeout_s) as client:
            upload = {**where, "UploadId": await self._begin_upload(client, where)}
            try:
                parts = await self._send_parts(name, upload["UploadId"], body, timeout_s)
                reply = await client.complete_multipart_upload(
                    **upload, MultipartUpload={"Parts": parts}
                )
            except BaseException:
                await self._abort(client, upload)
                raise
        return str(reply["ETag"]).strip('"')

    async def _begin_upload(self, client: Any, where: Mapping[str, str]) -> str:
        """Open an upload; if cancelled while opening, what the store opened is aborted."""
        opening = asyncio.ensure_future(client.create_multipart_upload(**where))
        try:
            reply = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait((opening,), timeout=ABORT_TIMEOUT_S)
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await self._abort(client, {**where, "UploadId": opening.result()["UploadId"]})
            opening.cancel()
            raise
        return str(reply["UploadId"])

    async def _send_parts(
        self, name: str, upload_id: str, body: memoryview, timeout_s: float
    ) -> Sequence[Mapping[str, object]]:
        """All parts in parallel; when one fails, none is on its way any more."""

        async def send(number: int, start: int, end: int) -> Mapping[str, object]:
            with body[start:end] as part:
                etag = await self._bodies.send_part(
                    name, upload_id, number, part, timeout_s=timeout_s
                )
            return {"PartNumber": number, "ETag": etag}

        ranges = part_ranges(len(body), self._settings.part_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(send(number, start, end))
                    for number, (start, end) in enumerate(ranges, 1)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _abort(self, client: Any, upload: Mapping[str, str]) -> None:
        """Give up an upload even while being cancelled: orphaned parts cost money for ever."""

        async def abort() -> None:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                for attempts_left in reversed(range(ABORT_ATTEMPTS)):
                    try:
                        with translated("abort", self._settings):
                            await forget_upload(client, upload)
                    except Transient:
                        if not attempts_left:
                            raise
                    else:
                        return

        aborting = asyncio.ensure_future(abort())
        while not aborting.done():
            try:
                await asyncio.wait((aborting,))
            except asyncio.CancelledError:
                continue  # the caller raises what made it abort
        if aborting.exception() is not None:
            logger.warning(
                "s3kv: upload of %s not aborted: %s", upload["Key"], aborting.exception()
            )

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """PUT with `If-None-Match: *`. A 409 (somebody is creating it just now) is `Transient`."""
        name = self._address.name_of(key)
        async with self._session.talk(f"create {key}", timeout_s) as client:
            try:
                await client.put_object(Bucket=self._bucket, Key=name, Body=body, IfNoneMatch="*")
            except ClientError as error:
                if error_status(error) == 412:
                    return EXISTS
                raise
        return CREATED

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of up to 1000 objects."""
        return listed_pages(self, prefix, timeout_s)

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """Up to 1000 objects."""
        asked = {"Bucket": self._bucket, "Prefix": self._address.root + check_prefix(prefix)}
        if token is not None:
            asked["ContinuationToken"] = token
        async with self._session.talk(f"LIST {prefix}", timeout_s) as client:
            reply = await client.list_objects_v2(**asked)
        now_s, key_of = date_s(reply), self._address.key_of
        objects = tuple(
            info_of(key, found, now_s)
            for found in reply.get("Contents", ())
            if (key := key_of(found["Key"])) is not None
        )
        return Page(objects, _next_token(reply, prefix))

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes one level below `prefix`, all pages within timeout_s."""
        name_prefix = self._address.root + check_prefix(prefix)
        asked = {"Bucket": self._bucket, "Prefix": name_prefix, "Delimiter": "/"}
        found: builtins.list[str] = []
        async with self._session.talk(f"LIST {prefix}", timeout_s) as client:
            while True:
                reply = await client.list_objects_v2(**asked)
                names = (common["Prefix"] for common in reply.get("CommonPrefixes", ()))
                found += [key for name in names if (key := self._address.key_of(name))]
                token = _next_token(reply, prefix)
                if token is None:
                    return found
                asked["ContinuationToken"] = token

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete, up to 1000 keys a request, all within timeout_s."""
        await self._upkeep.delete(keys, timeout_s)

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """How `delete_listed` makes sure; found out by the first call."""
        return await self._upkeep.conditional_delete(timeout_s)

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Delete what is still the listed upload, all within timeout_s; the keys that are not."""
        return await self._upkeep.delete_listed(found, timeout_s)

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """Copy inside the store: a HEAD and a copy request."""
        return await self._upkeep.copy(source, key, timeout_s)

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Unfinished multipart uploads, all pages within timeout_s."""
        return await self._leftovers.list_uploads(prefix, timeout_s)

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Give up an upload and its parts."""
        await self._leftovers.abort_upload(upload, timeout_s)

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages of up to 1000 versions and markers."""
        return self._leftovers.list_versions(prefix, timeout_s)

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete versions for good, up to 1000 a request, all within timeout_s."""
        await self._leftovers.delete_versions(versions, timeout_s)

    async def close(self) -> None:
        """End transfers, threads and connections. Idempotent."""
        self._session.refuse()
        await self._bodies.close()
        await self._session.close()


def _next_token(reply: Mapping[str, Any], prefix: str) -> str | None:
    """Where a listing goes on. Raises `Transient` if it should and the store does not say where."""
    if not reply["IsTruncated"]:
        return None
    token: str | None = reply.get("NextContinuationToken")
    if token is None:
        raise Transient(f"LIST {prefix}: the store does not say where the listing goes on")
    return token
