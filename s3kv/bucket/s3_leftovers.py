"""What a bucket holds beside its objects: unfinished uploads, old versions, delete markers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeAlias

from botocore.exceptions import ClientError

from s3kv.bucket.base import NULL_VERSION, ObjectInfo, ObjectStore, ObjectVersion, UploadInfo
from s3kv.bucket.errors_map import error_code, error_status
from s3kv.bucket.listing import PLAIN_LISTING
from s3kv.bucket.pages import Pages
from s3kv.bucket.prefix import check_prefix
from s3kv.bucket.s3_session import S3Session, age_s, date_s
from s3kv.bucket.s3_upkeep import delete_many
from s3kv.errors import Transient

_At: TypeAlias = Mapping[str, str]
"""Where a listing goes on: parameters of its next request."""


class Leftovers:
    """What `S3Store` does with uploads and versions. Owned by one event loop."""

    def __init__(self, session: S3Session, store: ObjectStore) -> None:
        """store: the plain store on this session, for listings."""
        self._session = session
        self._store = store
        self._bucket = session.bucket
        self._address = session.address
        self._knows_versions = True

    async def list_uploads(self, prefix: str, timeout_s: float) -> Sequence[UploadInfo]:
        """See `ObjectStore`."""
        asked = {"Bucket": self._bucket, "Prefix": self._address.root + check_prefix(prefix)}
        doing = f"LIST of uploads {prefix}"
        at: _At = {}
        found: list[UploadInfo] = []
        async with self._session.talk(doing, timeout_s) as client:
            while True:
                reply = await client.list_multipart_uploads(**asked, **at)
                now_s = date_s(reply)
                for each in reply.get("Uploads", ()):
                    key = self._address.key_of(each["Key"])
                    if key is not None:
                        since_s = age_s(each["Initiated"], now_s)
                        found.append(UploadInfo(key, each["UploadId"], since_s))
                if not reply.get("IsTruncated"):
                    return found
                at = _next(reply, ("KeyMarker", "UploadIdMarker"), at, doing)

    async def abort_upload(self, upload: UploadInfo, timeout_s: float) -> None:
        """See `ObjectStore`."""
        where = {"Bucket": self._bucket, "Key": self._address.name_of(upload.key)}
        async with self._session.talk(f"abort of {upload.key}", timeout_s) as client:
            await forget_upload(client, {**where, "UploadId": upload.upload_id})

    def list_versions(
        self, prefix: str, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """See `ObjectStore`."""

        async def fetch(at: _At | None) -> tuple[Sequence[ObjectVersion], _At | None]:
            if self._knows_versions:
                page = await self._versions_page(prefix, at or {}, timeout_s)
                if page is not None:
                    return page
                self._knows_versions = False
            token = (at or {}).get("ContinuationToken")
            plain = await self._store.list_page(prefix, token, timeout_s=timeout_s)
            token = plain.next_token
            return (
                [_only_version(each) for each in plain.objects],
                None if token is None else {"ContinuationToken": token},
            )

        return Pages(fetch)

    async def _versions_page(
        self, prefix: str, at: _At, timeout_s: float
    ) -> tuple[Sequence[ObjectVersion], _At | None] | None:
        """None if the store has never heard of versions."""
        name_prefix = self._address.root + check_prefix(prefix)
        doing = f"LIST of versions {prefix}"
        async with self._session.talk(doing, timeout_s) as client:
            try:
                reply = await client.list_object_versions(
                    Bucket=self._bucket, Prefix=name_prefix, **at
                )
            except ClientError as error:
                if _is_unknown(error):
                    return None
                raise
        if reply.get(PLAIN_LISTING):
            return None
        onwards = None
        if reply["IsTruncated"]:
            onwards = _next(reply, ("KeyMarker", "VersionIdMarker"), at, doing)
        return self._versions_of(reply), onwards

    def _versions_of(self, reply: Mapping[str, Any]) -> Sequence[ObjectVersion]:
        now_s = date_s(reply)
        return [
            ObjectVersion(
                key,
                each["VersionId"],
                each["Size"],
                age_s(each["LastModified"], now_s),
                each["IsLatest"],
                is_marker,
            )
            for member, is_marker in (("Versions", False), ("DeleteMarkers", True))
            for each in reply.get(member, ())
            if (key := self._address.key_of(each["Key"])) is not None
        ]

    async def delete_versions(self, versions: Sequence[ObjectVersion], timeout_s: float) -> None:
        """See `ObjectStore`."""
        objects = []
        for each in versions:
            named = {"Key": self._address.name_of(each.key)}
            if self._knows_versions or each.version_id != NULL_VERSION:
                named["VersionId"] = each.version_id
            objects.append(named)
        async with self._session.talk(f"DELETE of {len(objects)} versions", timeout_s) as client:
            await delete_many(client, self._bucket, objects)


async def forget_upload(client: Any, upload: Mapping[str, str]) -> None:
    """Abort an upload, unless it is gone."""
    try:
        await client.abort_multipart_upload(**upload)
    except ClientError as error:
        if error_code(error) != "NoSuchUpload":
            raise


def _is_unknown(error: ClientError) -> bool:
    is_said = error_code(error) in ("NotImplemented", "MethodNotAllowed")
    return is_said or error_status(error) in (405, 501)


def _next(reply: Mapping[str, Any], markers: Sequence[str], at: _At, doing: str) -> _At:
    """Parameters of the next request. Raises `Transient` if the answer leads nowhere."""
    onwards = {name: reply[f"Next{name}"] for name in markers if reply.get(f"Next{name}")}
    if not onwards or onwards == at:
        raise Transient(f"{doing}: the store does not say where the listing goes on")
    return onwards


def _only_version(found: ObjectInfo) -> ObjectVersion:
    return ObjectVersion(found.key, NULL_VERSION, found.size, found.age_s, True, False)
