"""From a command's options to a connection, and from a failure to one line and an exit code.

Rule upheld here: bad input and a bucket that cannot be used end in one line that names what is
wrong and what to do, never in a traceback, and no credential is ever printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.connect import BucketSettings, RetryPolicy, connect, parse_uri
from s3kv.bucket.prefix import BucketAddress
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.errors import ConfigError, Denied, S3KVError, Transient

EXIT_OK: Final = 0
EXIT_LIMITED: Final = 1
EXIT_UNUSABLE: Final = 2

REQUEST_TIMEOUT_S: Final = 20.0

AddressingStyle: TypeAlias = Literal["auto", "path", "virtual"]
ChecksumMode: TypeAlias = Literal["when_required", "when_supported"]

_STYLES: Final[Mapping[str, AddressingStyle]] = {
    "auto": "auto",
    "path": "path",
    "virtual": "virtual",
}
_MODES: Final[Mapping[str, ChecksumMode]] = {
    "when_required": "when_required",
    "when_supported": "when_supported",
}
_REMEDIES: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket or correct the URI: s3kv never creates one",
    "AccessDenied": "allow s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject, "
    "s3:DeleteObject and s3:AbortMultipartUpload under the prefix; s3kv forget also needs "
    "s3:ListBucketVersions, s3:ListBucketMultipartUploads and s3:DeleteObjectVersion",
    "InvalidAccessKeyId": "check which credentials the AWS chain finds",
    "SignatureDoesNotMatch": "check the secret key that the AWS chain finds",
    "ExpiredToken": "refresh the credentials",
    "RequestTimeTooSkewed": "set this machine's clock",
}
CREDENTIALS_REMEDY: Final = "give credentials through the AWS chain (environment, profile, role)"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in words. code: the store's own, e.g. `NoSuchBucket`, or the empty string."""

    code: str
    says: str
    remedy: str

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.says}; {self.remedy}" if self.remedy else self.says


def bucket_settings(options: Options, address: BucketAddress | None = None) -> BucketSettings:
    """Check the options. Raises `ConfigError` naming the first one that is wrong.

    address: in place of the one that the URI names.
    """
    if "@" in options.uri.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "uri", "<hidden>", "credentials do not belong into the URI", CREDENTIALS_REMEDY
        )
    style = _STYLES.get(options.addressing_style)
    if style is None:
        raise _not_one_of("--addressing-style", options.addressing_style, _STYLES)
    mode = _MODES.get(options.checksum_mode)
    if mode is None:
        raise _not_one_of("--checksum-mode", options.checksum_mode, _MODES)
    for name, value in (("--region", options.region), ("--profile", options.profile)):
        if value is not None and not value.strip():
            raise ConfigError(name, value, "empty", "leave it out for the AWS chain's choice")
    return BucketSettings(
        address=address or parse_uri(options.uri),
        endpoint_url=_endpoint(options.endpoint_url),
        region=options.region,
        profile=options.profile,
        addressing_style=style,
        checksum_mode=mode,
        # A person is waiting: less patience than an engine has.
        retry=RetryPolicy(attempt_count=3),
    )


def _not_one_of(name: str, value: str, known: Mapping[str, str]) -> ConfigError:
    return ConfigError(name, value, "unknown value", f"use one of {', '.join(known)}")


def _endpoint(url: str | None) -> str | None:
    if url is None:
        return None
    name, remedy = "--endpoint-url", 'write it as "http://host:port"'
    if "@" in url:
        raise ConfigError(
            name, "<hidden>", "credentials do not belong into the URL", CREDENTIALS_REMEDY
        )
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or any(char.isspace() for char in url):
        raise ConfigError(name, url, "not the URL of a store", remedy)
    return url


@asynccontextmanager
async def opened(settings: BucketSettings) -> AsyncIterator[ObjectStore]:
    """A store for the length of a block."""
    store = connect(settings)
    try:
        yield store
    finally:
        await store.close()


def explain(error: S3KVError, settings: BucketSettings | None = None) -> Failure:
    """What a failed request means for the person at the keyboard."""
    # The translated exception keeps the SDK's one, whose answer has the store's own words.
    response = getattr(error.__cause__, "response", None)
    answer = response.get("Error", {}) if isinstance(response, Mapping) else {}
    code, message = str(answer.get("Code", "")), str(answer.get("Message", "")).rstrip(".")
    if code == "AccessDenied":
        # Only the request itself tells which of the permissions is missing.
        return Failure(code, str(error), _REMEDIES[code])
    if code in _REMEDIES:
        return Failure(code, f"{code}: {message}" if message else code, _REMEDIES[code])
    if isinstance(error, Transient):
        remedy = "check --endpoint-url, the network and the name service, then try again"
        if settings and settings.endpoint_url and settings.addressing_style != "path":
            remedy += "; many compatible stores need --addressing-style path"
        return Failure(code, str(error), remedy)
    remedy = "" if isinstance(error, Denied) else "try again"
    return Failure(code, str(error), remedy)


def run_command(uri: str, output: Output, work: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run a command to its exit code; what goes wrong is said in one line, with code 2."""
    try:
        return asyncio.run(work())
    except ConfigError as error:
        output.refuse_input(error, EXIT_UNUSABLE)
    except S3KVError as error:
        failure = explain(error)
        remedy = f"; {failure.remedy}" if failure.remedy else ""
        output.refuse(
            f"uri={uri!r}: {failure.says}{remedy}",
            {
                "exit_code": EXIT_UNUSABLE,
                "error": {
                    "field": "uri",
                    "value": uri,
                    "code": failure.code,
                    "says": failure.says,
                    "remedy": failure.remedy,
                },
            },
        )
    return EXIT_UNUSABLE
