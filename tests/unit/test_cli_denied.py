"""What a person is told when the store refuses a request."""

from __future__ import annotations

import pytest

from s3kv.cli.connection import explain
from s3kv.errors import Denied


def refused(doing: str, code: str) -> Denied:
    """As `errors_map` raises it: the SDK's exception is the cause."""
    cause = Exception()
    cause.response = {"Error": {"Code": code, "Message": "Access Denied."}}  # type: ignore[attr-defined]
    error = Denied(f"{doing} (s3://bucket/prefix): {code}, Access Denied: the policy must allow it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("doing", "permission"),
    [
        ("LIST of versions ", "s3:ListBucketVersions"),
        ("LIST of uploads ", "s3:ListBucketMultipartUploads"),
        ("DELETE of 3 versions", "s3:DeleteObjectVersion"),
        ("PUT key", "s3:PutObject"),
    ],
)
def test_the_request_that_was_denied_is_named_and_so_is_its_permission(
    doing: str, permission: str
) -> None:
    failure = explain(refused(doing, "AccessDenied"))

    assert failure.says.startswith(f"{doing} (s3://bucket/prefix): AccessDenied")
    assert permission in failure.remedy


def test_other_refusals_are_about_the_bucket_or_the_credentials() -> None:
    assert explain(refused("PUT key", "NoSuchBucket")).says == "NoSuchBucket: Access Denied"
