from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.prefix import BucketAddress, check_key, parse_uri
from s3kv.errors import ConfigError

SEGMENT = st.text(
    st.characters(exclude_characters="/?#", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda segment: segment not in (".", ".."))
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/a", "my.bucket-1", "a"),
        ("s3://bucket/a/b/", "bucket", "a/b"),
        ("s3://bucket/ä b+c", "bucket", "ä b+c"),
    ],
)
def test_a_uri_gives_bucket_and_prefix(uri: str, bucket: str, prefix: str) -> None:
    assert parse_uri(uri) == BucketAddress(bucket, prefix)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "bucket/prefix",
        "http://bucket/prefix",
        "s3://",
        "s3:///prefix",
        "s3://ab",
        "s3://buck et/x",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a?x=1",
        "s3://" + "b" * 64,
    ],
)
def test_a_wrong_uri_is_a_configuration_error_of_that_field(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_uri(uri)
    assert raised.value.field == "uri"
    assert "s3://bucket/prefix" in str(raised.value)


@given(prefix=st.just("") | PATH, key=PATH)
def test_names_and_keys_are_inverse_and_stay_under_the_prefix(prefix: str, key: str) -> None:
    address = BucketAddress("bucket", prefix)
    name = address.name_of(key)
    assert name.startswith(address.root)
    assert address.key_of(name) == key
    assert BucketAddress("bucket", prefix + "x").key_of(name) is None or prefix == ""


def test_a_neighbour_with_the_same_beginning_is_outside() -> None:
    address = parse_uri("s3://bucket/team")
    assert address.key_of("team-b/x") is None
    assert address.key_of("team/") is None
    assert address.key_of("team/x") == "x"


@given(key=PATH, bad=st.sampled_from(["", ".", ".."]), index=st.integers(0, 4))
def test_a_key_with_an_empty_or_dotted_segment_is_refused(key: str, bad: str, index: int) -> None:
    segments = key.split("/")
    segments.insert(min(index, len(segments)), bad)
    with pytest.raises(ValueError, match="key"):
        check_key("/".join(segments))


def test_a_name_longer_than_s3_takes_is_refused() -> None:
    address = BucketAddress("bucket", "p" * 500)
    assert address.name_of("k" * 523)
    with pytest.raises(ValueError, match="1024"):
        address.name_of("k" * 524)
