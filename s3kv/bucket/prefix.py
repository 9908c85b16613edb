"""Keys: what a caller may name, and how it becomes a name in the bucket.

Every key of the layers above is relative to the configured prefix. This module is the one place
where the two are joined, so nothing outside the prefix can be read, written or deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from s3kv.errors import ConfigError

MAX_NAME_BYTES = 1024
"""S3's limit on an object name, in UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where an archive lies: `s3://{bucket}/{prefix}`; prefix without slashes at its ends."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        """The address as a user writes it."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def root(self) -> str:
        """What stands in front of every key: empty, or the prefix with one slash at its end."""
        return f"{self.prefix}/" if self.prefix else ""

    def name_of(self, key: str) -> str:
        """Object name of a key. Raises `ValueError` on a key that `check_key` refuses."""
        name = self.root + check_key(key)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"object name of {len(name.encode())} bytes, S3 takes 1024: {name!r}")
        return name

    def key_of(self, name: str) -> str | None:
        """Key of an object name; None for a name outside the prefix and for folder markers."""
        if not name.startswith(self.root) or name == self.root:
            return None
        return name[len(self.root) :]


def check_key(key: str) -> str:
    """Return `key` unchanged, or raise `ValueError`: a wrong key is a bug of the caller.

    Refused: the empty key, a leading or closing slash, empty segments, `.` and `..`.
    """
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise ValueError(f"not a relative object key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return a list prefix unchanged; empty, ending inside a segment and in a slash are fine."""
    if prefix:
        check_key(f"{prefix}x")
    return prefix


def parse_uri(uri: str) -> BucketAddress:
    """Split `s3://bucket/prefix`. Raises `ConfigError` (field `uri`)."""
    remedy = 'write it as "s3://bucket/prefix"'
    if not uri.startswith("s3://"):
        raise ConfigError("uri", uri, "not an S3 URI", remedy)
    bucket, _, prefix = uri[len("s3://") :].partition("/")
    prefix = prefix.strip("/")
    if not 3 <= len(bucket) <= 63 or not bucket.replace("-", "").replace(".", "").isalnum():
        raise ConfigError("uri", uri, f"{bucket!r} is no bucket name", remedy)
    if "?" in prefix or "#" in prefix:
        raise ConfigError("uri", uri, "an S3 URI has no query and no fragment", remedy)
    try:
        check_prefix(prefix)
    except ValueError:
        raise ConfigError("uri", uri, "empty, '.' or '..' segment in the prefix", remedy) from None
    return BucketAddress(bucket, prefix)
