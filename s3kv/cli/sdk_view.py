"""What only the SDK can tell: where credentials come from, what an aborted upload leaves behind.

Used by `s3kv doctor` alone; everything else speaks to an `ObjectStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from s3kv.bucket.settings import BucketSettings
from s3kv.errors import Denied

T = TypeVar("T")

PART = b"s3kv probe" * 1_000


@dataclass(frozen=True, slots=True)
class AbortOutcome:
    """left_count: uploads of the probe that the store still lists; None if it lists none to us."""

    left_count: int | None


class SdkView:
    """One blocking client, used one call at a time on a helper thread."""

    def __init__(self, settings: BucketSettings) -> None:
        """Nothing is opened yet."""
        self._settings = settings
        self._client: Any = None

    async def credentials_source(self) -> str:
        """How the AWS chain found credentials, e.g. `env`. Raises `Denied` if it found none."""
        return await self._call("credentials", self._credentials_source)

    async def abort_upload(self, key: str) -> AbortOutcome:
        """Begin an upload of parts and abort it. Raises `S3KVError` if that is refused."""
        return await self._call(f"abort of an upload to {key}", lambda: self._abort_upload(key))

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _call(self, doing: str, work: Callable[[], T]) -> T:
        from s3kv.bucket.errors_map import translated
        from s3kv.bucket.sdk import make_body_client

        def run() -> T:
            with translated(doing, self._settings):
                if self._client is None:
                    self._client = make_body_client(self._settings, None)
                return work()

        return await asyncio.to_thread(run)

    def _credentials_source(self) -> str:
        # Signing needs credentials and sends nothing: it fails where there are none.
        address = self._settings.address
        self._client.generate_presigned_url("head_bucket", Params={"Bucket": address.bucket})
        signer = getattr(self._client, "_request_signer", None)
        return str(getattr(getattr(signer, "_credentials", None), "method", "") or "AWS chain")

    def _abort_upload(self, key: str) -> AbortOutcome:
        name = self._settings.address.name_of(key)
        where = {"Bucket": self._settings.address.bucket, "Key": name}
        upload_id = self._client.create_multipart_upload(**where)["UploadId"]
        try:
            self._client.upload_part(**where, UploadId=upload_id, PartNumber=1, Body=PART)
        finally:
            self._client.abort_multipart_upload(**where, UploadId=upload_id)
        return AbortOutcome(self._left_count(where["Bucket"], name, upload_id))

    def _left_count(self, bucket: str, name: str, upload_id: str) -> int | None:
        from s3kv.bucket.errors_map import translated

        try:
            with translated("LIST of uploads", self._settings):
                reply = self._client.list_multipart_uploads(Bucket=bucket, Prefix=name)
        except Denied:
            return None
        uploads = [found.get("UploadId") for found in reply.get("Uploads", ())]
        return uploads.count(upload_id)
