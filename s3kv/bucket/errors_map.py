"""The one place where foreign exceptions become those of `s3kv.errors`.

A status or a code decides, never the text of a message. What is not known to pass by itself is
`Denied` if the store said it (4xx) and `Transient` if it was a failure on the way.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp
import urllib3.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)
from botocore.parsers import ResponseParserError

from s3kv.bucket.settings import BucketSettings
from s3kv.errors import Denied, S3KVError, Throttled, Transient

_THROTTLED = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
    }
)
_PASSING = frozenset(
    {
        "RequestTimeout",
        "RequestTimeoutException",
        "BadDigest",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "IncompleteBody",
        "NoSuchUpload",
        "OperationAborted",
        "ConditionalRequestConflict",
        "InternalError",
        "ServiceUnavailable",
    }
)
_PASSING_STATUS = frozenset({408, 409, 425})
_REMEDIES: Mapping[str, str] = {
    "NoSuchBucket": "create it, or correct the uri: s3kv never creates a bucket",
    "ExpiredToken": "refresh the credentials",
    "InvalidAccessKeyId": "check which credentials the AWS chain finds",
    "SignatureDoesNotMatch": "check the secret key",
    "RequestTimeTooSkewed": "set this machine's clock",
    "AccessDenied": "the policy must allow this request on the prefix",
    "NotImplemented": "this store lacks the request",
}
_NETWORK_ERRORS = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    ResponseParserError,
    aiohttp.ClientError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
_CREDENTIAL_ERRORS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)


def error_code(error: ClientError) -> str:
    """The store's own word, e.g. `NoSuchKey`; a HEAD has only the status to tell, e.g. `404`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_status(error: ClientError) -> int:
    """HTTP status of the answer, 0 if unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def error_header(error: ClientError, name: str) -> str | None:
    """One response header of a refused request, by its lower-case name."""
    value = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(name)
    return None if value is None else str(value)


def is_missing(error: ClientError) -> bool:
    """Whether the answer means: there is no such object."""
    return error_code(error) in ("NoSuchKey", "404", "NotFound")


def _redirected(error: ClientError, settings: BucketSettings) -> Denied:
    region = error_header(error, "x-amz-bucket-region")
    region = region or error.response.get("Error", {}).get("Region")
    if region is None:
        remedy = "set region and endpoint_url of the bucket"
    else:
        remedy = f"set region={region!r}"
    return Denied(
        f"{settings.place}: the bucket is not in region {settings.region!r} "
        f"({error_code(error) or error_status(error)}): {remedy}"
    )


def from_answer(error: ClientError, doing: str, settings: BucketSettings) -> S3KVError:
    """What a refusal by the store means for the caller. doing: e.g. `PUT key`."""
    code, status = error_code(error), error_status(error)
    if 300 <= status < 400 or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return _redirected(error, settings)
    said = f"{doing} ({settings.place}): {code or status}"
    if code in _THROTTLED or status in (429, 503):
        return Throttled(said)
    if code in _PASSING or status in _PASSING_STATUS or (status >= 500 and status != 501):
        return Transient(said)
    message = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    return Denied(f"{said}, {message}: {_REMEDIES.get(code, 'retrying cannot help')}")


def from_failure(error: Exception, doing: str, settings: BucketSettings) -> S3KVError:
    """What a failure on the way (no answer, no credentials) means for the caller."""
    said = f"{doing} ({settings.place}): {type(error).__name__}: {error}"
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Denied(
            f"{said}: give credentials through the AWS chain (environment, profile, role)"
        )
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error).upper():
        return Denied(f"{said}: install the store's certificate authority (AWS_CA_BUNDLE)")
    if isinstance(error, _NETWORK_ERRORS):
        return Transient(said)
    return Denied(f"{said}: check region, profile and endpoint_url")


@contextmanager
def translated(doing: str, settings: BucketSettings) -> Iterator[None]:
    """Run a block of SDK calls; whatever foreign leaves it, leaves it as an `S3KVError`.

    `TimeoutError` is an `OSError` and becomes `Transient`; assertions and programmer errors pass.
    """
    try:
        yield
    except ClientError as error:
        raise from_answer(error, doing, settings) from error
    except (BotoCoreError, *_NETWORK_ERRORS) as error:
        raise from_failure(error, doing, settings) from error
