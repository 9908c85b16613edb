"""What a connection to a bucket needs to know. Plain values: importing this costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from s3kv.bucket.prefix import BucketAddress
from s3kv.bucket.retry import RetryPolicy

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """Where the archive is and how to talk to it. Never contains credentials.

    endpoint_url, region, profile: None leaves the choice to the standard AWS chain.
    connect_timeout_s, read_timeout_s: longest silence while connecting, between two packets.
    body_threads: transfers at once. small_bytes: bodies up to this size go with the conversation.
    multipart_bytes: larger bodies are sent in parts of part_bytes (S3: at least 5 MiB but for the
    last, at most 10,000 parts).
    """

    address: BucketAddress
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    checksum_mode: Literal["when_required", "when_supported"] = "when_required"
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    body_threads: int = 8
    small_bytes: int = 64 * KIB
    multipart_bytes: int = 64 * MIB
    part_bytes: int = 16 * MIB
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        """Check what only a programmer can get wrong."""
        if self.body_threads < 1:
            raise ValueError(f"body_threads={self.body_threads}: at least one is needed")
        if not 0 < self.part_bytes <= self.multipart_bytes:
            raise ValueError(f"part_bytes={self.part_bytes} over {self.multipart_bytes}")

    @property
    def place(self) -> str:
        """Bucket and endpoint in words, for messages."""
        return f"{self.address.uri} at {self.endpoint_url or 'AWS'}"


def part_ranges(body_bytes: int, part_bytes: int) -> list[tuple[int, int]]:
    """[start, end) of each part of a multipart upload, in order; all but the last are equal."""
    starts = range(0, body_bytes, part_bytes)
    return [(start, min(start + part_bytes, body_bytes)) for start in starts]
