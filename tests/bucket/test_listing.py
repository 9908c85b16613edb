from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from s3kv.bucket.base import ObjectInfo
from s3kv.bucket.listing import scan_page
from s3kv.errors import Transient
from tests.bucket.contract import listed
from tests.bucket.stores import plain_store
from tests.faults.http_server import Answer, ScriptedServer

PAGE = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Name>bucket</Name><Prefix>pre/</Prefix><EncodingType>url</EncodingType>
<IsTruncated>false</IsTruncated>
<Contents><Key>pre/a%20b%2Bc</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified>
<ETag>&quot;e&amp;1&quot;</ETag><Size>5368709120</Size><Owner><ID>o</ID></Owner></Contents>
<Contents><Key>pre/</Key><LastModified>2026-01-02T03:04:05Z</LastModified><Size>0</Size></Contents>
<Contents><Key>prelude</Key><LastModified>2026-01-02T03:04:05Z</LastModified><Size>0</Size>
</Contents>
<CommonPrefixes><Prefix>pre/sub%20folder/</Prefix></CommonPrefixes>
</ListBucketResult>"""


async def test_a_page_is_decoded_and_what_lies_outside_the_prefix_is_left_out(
    server: ScriptedServer,
) -> None:
    date = "Fri, 02 Jan 2026 03:05:05 GMT"
    server.reply(*[Answer(200, PAGE, {"Date": date})] * 2)
    async with plain_store(server.endpoint_url, "s3://bucket/pre") as store:
        (info,) = await listed(store, "")
        prefixes = await store.list_prefixes("", timeout_s=5)
    modified_s = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC).timestamp()
    assert (info.key, info.size, info.etag) == ("a b+c", 5_368_709_120, "e&1")
    assert info.modified_s == pytest.approx(modified_s, abs=1e-3)
    assert info.age_s == pytest.approx(59.322, abs=1e-3)
    assert list(prefixes) == ["sub folder/"]


async def test_an_age_is_the_stores_and_not_this_machines(server: ScriptedServer) -> None:
    headers = {
        "Date": "Fri, 02 Jan 2026 03:05:05 GMT",
        "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
        "ETag": '"e"',
    }
    server.reply(Answer(200, b"", headers), Answer(200, b"", {**headers, "Date": ""}))
    async with plain_store(server.endpoint_url, "s3://bucket/pre") as store:
        found = await store.stat("x", timeout_s=5)
        without_date = await store.stat("x", timeout_s=5)
    assert isinstance(found, ObjectInfo)
    assert isinstance(without_date, ObjectInfo)
    assert (found.age_s, without_date.age_s) == (60.0, 0.0)
    assert time.time() - found.modified_s > 3600


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", b"<Html/>", PAGE[:-40], PAGE.replace(b"5368709120", b"big")],
    ids=["empty", "text", "other", "cut off", "no number"],
)
async def test_a_page_that_is_none_is_transient(server: ScriptedServer, body: bytes) -> None:
    server.reply(Answer(200, body))
    async with plain_store(server.endpoint_url, "s3://bucket/pre") as store:
        with pytest.raises(Transient):
            await listed(store, "")


def test_pages_are_read_with_and_without_a_namespace() -> None:
    bare = PAGE.replace(b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', b"")
    assert scan_page(bare) == scan_page(PAGE)
