"""The demo's own view of the bucket, as an outsider: makes it, counts what lies in it, damages it.

Plain boto3 on purpose: what the archive says about itself is checked against what is there.
"""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping

import boto3
from botocore.config import Config

from s3kv.cli.local_store import OWNER

REGION = "us-east-1"
SHARD_SUFFIX = ".safetensors"
SETTLE_S = 3.0  # longer than the archive takes between a commit and its tick


class DemoBucket:
    """One bucket of a local store; owned by the demo's thread."""

    def __init__(self, endpoint_url: str, name: str, metrics_url: str | None = None) -> None:
        """metrics_url: Prometheus page of the server, the independent witness for requests."""
        self.endpoint_url = endpoint_url
        self.name = name
        self._metrics_url = metrics_url
        self._own_requests: Counter[str] = Counter()
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=REGION,
            aws_access_key_id=OWNER.access_key,
            aws_secret_access_key=OWNER.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )

    def create(self) -> None:
        """Make the bucket. The connector never does this."""
        self._client.create_bucket(Bucket=self.name)
        self._own_requests["PUT"] += 1  # so does the server count it

    def sizes(self) -> dict[str, int]:
        """Bytes of every object, by key."""
        found: dict[str, int] = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            self._own_requests["LIST"] += 1
            found |= {entry["Key"]: entry["Size"] for entry in page.get("Contents", [])}
        return found

    def shards(self) -> dict[str, int]:
        """Bytes of every shard, by key."""
        return {
            key: size
            for key, size in self.sizes().items()
            if "/data/" in key and key.endswith(SHARD_SUFFIX)
        }

    def wait_until_settled(self, timeout_s: float) -> None:
        """Return when nothing has changed for `SETTLE_S`, or when the time is over."""
        deadline_s = time.monotonic() + timeout_s
        seen, since_s = self.sizes(), time.monotonic()
        while time.monotonic() < deadline_s:
            time.sleep(0.5)
            now = self.sizes()
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif time.monotonic() - since_s >= SETTLE_S:
                return

    def first_shard(self) -> str:
        """Key of the shard that the longest chain starts with (its parent is no shard)."""
        headers = {key: self._metadata(key) for key in self.shards()}
        parents = {meta["chunk_hash"]: meta["parent_hash"] for meta in headers.values()}

        def root(chunk_hash: str) -> str:
            while parents[chunk_hash] in parents:
                chunk_hash = parents[chunk_hash]
            return chunk_hash

        longest = Counter(root(chunk_hash) for chunk_hash in parents).most_common(1)[0][0]
        return next(key for key, meta in headers.items() if meta["chunk_hash"] == longest)

    def flip_byte(self, key: str) -> None:
        """Change one byte in the last quarter of an object, far behind its header."""
        body = bytearray(self._get(key))
        body[len(body) * 7 // 8] ^= 0xFF
        self._client.put_object(Bucket=self.name, Key=key, Body=bytes(body))
        self._own_requests["PUT"] += 1

    def requests_by_kind(self) -> dict[str, int] | None:
        """Requests that others made to this bucket, as the server counted them; None if it can't.

        The server counts HEAD as GET.
        """
        if self._metrics_url is None:
            return None
        with urllib.request.urlopen(self._metrics_url, timeout=10) as page:
            counted = count_requests(page.read().decode(), self.name)
        counted.subtract(self._own_requests)
        return {kind: count for kind, count in sorted(counted.items()) if count > 0}

    def _get(self, key: str, byte_range: str | None = None) -> bytes:
        self._own_requests["GET"] += 1
        extra = {} if byte_range is None else {"Range": byte_range}
        body: bytes = self._client.get_object(Bucket=self.name, Key=key, **extra)["Body"].read()
        return body

    def _metadata(self, key: str) -> Mapping[str, str]:
        (length,) = struct.unpack("<Q", self._get(key, "bytes=0-7"))
        header: dict[str, dict[str, str]] = json.loads(self._get(key, f"bytes=8-{7 + length}"))
        return header["__metadata__"]


def count_requests(page: str, bucket: str) -> Counter[str]:
    """Requests by kind from a Prometheus page of SeaweedFS, all status codes together."""
    counted: Counter[str] = Counter()
    for line in page.splitlines():
        if line.startswith("SeaweedFS_s3_request_total{") and f'bucket="{bucket}"' in line:
            labels, _, value = line.rpartition(" ")
            kind = labels.partition('type="')[2].partition('"')[0]
            counted[kind] += int(float(value))
    return counted
