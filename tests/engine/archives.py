"""An archive as seen from outside, without any code of ours."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Archive:
    """A prefix of a bucket, looked at without any code of ours."""

    endpoint_url: str
    bucket: str
    prefix: str

    def _client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint_url)

    def objects(self, prefix: str | None = None) -> dict[str, int]:
        """Name -> bytes of everything under a prefix (by default our own)."""
        under = f"{self.prefix}/" if prefix is None else prefix
        client = self._client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=under)
        found = {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", [])}
        client.close()
        return found

    def bodies(self, names: Iterable[str]) -> list[bytes]:
        """Contents of those names that are still there."""
        client, found = self._client(), []
        for name in names:
            with suppress(client.exceptions.NoSuchKey):
                found.append(client.get_object(Bucket=self.bucket, Key=name)["Body"].read())
        client.close()
        return found

    def shards(self) -> set[str]:
        return {name for name in self.objects() if "/data/" in name}

    def ticks(self) -> set[str]:
        return {name for name in self.objects() if "/idx/tick/" in name}

    def segments(self) -> set[str]:
        return {name for name in self.objects() if "/idx/inbox/" in name}

    def namespaces(self) -> set[str]:
        ours = (name.removeprefix(f"{self.prefix}/") for name in self.objects())
        return {name.split("/")[0] for name in ours if name.split("/")[0] != ".s3kv-probe"}

    def bucket_names(self) -> set[str]:
        client = self._client()
        names = {each["Name"] for each in client.list_buckets()["Buckets"]}
        client.close()
        return names
