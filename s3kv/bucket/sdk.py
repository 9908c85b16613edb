"""The AWS SDK, set up once: configuration of both clients, the thread guard, no surprises.

The retries and redirects of botocore and aiohttp are off: repeating is `Retrying`'s task, and a
wrong region is an error to tell. awscrt is kept out, because with it botocore copies every body to
sign it. Nothing here talks to the network.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from s3kv.bucket.listing import EMPTY_PAGE, EMPTY_VERSIONS, scan_page, scan_versions
from s3kv.bucket.settings import BucketSettings

logger = logging.getLogger(__name__)


def _import_without_crt() -> None:
    """Import botocore so that it ignores awscrt; the environment is as before afterwards."""
    if "botocore.compat" in sys.modules:
        return
    before = os.environ.get("BOTO_DISABLE_CRT")
    os.environ["BOTO_DISABLE_CRT"] = "true"
    try:
        importlib.import_module("botocore.compat")
    finally:
        if before is None:
            del os.environ["BOTO_DISABLE_CRT"]
        else:
            os.environ["BOTO_DISABLE_CRT"] = before


_import_without_crt()

import botocore.compat  # noqa: E402
from aiobotocore.config import AioConfig  # noqa: E402
from aiobotocore.httpsession import AIOHTTPSession  # noqa: E402
from aiobotocore.session import AioSession  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.loaders import Loader  # noqa: E402
from botocore.parsers import ResponseParserError  # noqa: E402
from botocore.session import Session  # noqa: E402

if botocore.compat.HAS_CRT:
    logger.warning(
        "s3kv: botocore was imported with awscrt, uploads cost more CPU; set BOTO_DISABLE_CRT=true"
    )


# Parsing the description of S3 is most of what a client costs; both clients share it.
_loader = Loader()


class WrongThread(AssertionError):
    """A request to the bucket was about to be sent from a thread that must never wait for it."""


class ThreadGuard:
    """Refuses requests of threads whose name does not start with a prefix, and counts them.

    Runs as botocore's `before-send` handler: the last moment before bytes leave the process.
    """

    def __init__(self, name_prefix: str) -> None:
        """name_prefix: e.g. `s3kv-`."""
        self._name_prefix = name_prefix
        self._refused_count = 0
        # Any two threads that are refused at the same time.
        self._lock = threading.Lock()

    @property
    def refused_count(self) -> int:
        """Requests refused so far."""
        return self._refused_count

    def check(self, **_: object) -> None:
        """Raise `WrongThread` on a foreign thread; returning None lets botocore send."""
        name = threading.current_thread().name
        if not name.startswith(self._name_prefix):
            with self._lock:
                self._refused_count += 1
            raise WrongThread(f"bucket request from thread {name!r}")


def _stay_in_region(context: dict[str, Any], **_: object) -> None:
    # The redirector leaves alone what it believes to have redirected already.
    context.setdefault("s3_redirect", {})["redirected"] = True


def _parses(scan: Callable[[bytes], Mapping[str, Any]], empty_page: bytes) -> Callable[..., None]:
    """A handler that reads list pages in botocore's place."""

    def parse(
        response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
    ) -> None:
        # botocore parses what is left in the body and adds what is customized.
        if response_dict["status_code"] == 200:
            try:
                customized_response_dict.update(scan(response_dict["body"]))
            except (ElementTree.ParseError, ValueError, KeyError) as error:
                raise ResponseParserError(f"list page: {error}") from error
            response_dict["body"] = empty_page

    return parse


_PARSERS = {
    "ListObjectsV2": _parses(scan_page, EMPTY_PAGE),
    "ListObjectVersions": _parses(scan_versions, EMPTY_VERSIONS),
}


def _register(client: Any, guard: ThreadGuard | None) -> None:
    client.meta.events.register("before-call.s3", _stay_in_region)
    for operation, parse in _PARSERS.items():
        client.meta.events.register_last(f"before-parse.s3.{operation}", parse)
    if guard is not None:
        client.meta.events.register_first("before-send.s3", guard.check)


def _options(settings: BucketSettings, s3_options: dict[str, object]) -> dict[str, Any]:
    return {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": settings.connect_timeout_s,
        "read_timeout": settings.read_timeout_s,
        "request_checksum_calculation": settings.checksum_mode,
        "response_checksum_validation": settings.checksum_mode,
        "tcp_keepalive": True,
        "user_agent_extra": "s3kv",
        "s3": {"addressing_style": settings.addressing_style, **s3_options},
    }


class _SingleRequests:
    """The part of aiohttp's session that aiobotocore uses, without its second thoughts."""

    def __init__(self, session: Any) -> None:
        # Sends a PUT again after a lost reply: repeating is for those who know what it means.
        session._retry_connection = False
        self._session = session

    def request(self, method: str, **options: Any) -> Any:
        return self._session.request(method, allow_redirects=False, **options)


class _SingleRequestTransport(AIOHTTPSession):  # type: ignore[misc]
    async def _get_session(self, proxy_url: str | None) -> _SingleRequests:
        return _SingleRequests(await super()._get_session(proxy_url))


def open_conversation(settings: BucketSettings, guard: ThreadGuard | None) -> Any:
    """An asynchronous context manager that yields the aiobotocore client."""
    session = AioSession(profile=settings.profile)
    session.register_component("data_loader", _loader)
    return _Conversation(
        session.create_client(
            "s3",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url,
            config=AioConfig(
                max_pool_connections=32,
                http_session_cls=_SingleRequestTransport,
                **_options(settings, {}),
            ),
        ),
        guard,
    )


class _Conversation:
    """aiobotocore's client context with our handlers on the client."""

    def __init__(self, context: Any, guard: ThreadGuard | None) -> None:
        self._context = context
        self._guard = guard

    async def __aenter__(self) -> Any:
        client = await self._context.__aenter__()
        _register(client, self._guard)
        return client

    async def __aexit__(self, *error: object) -> None:
        await self._context.__aexit__(*error)


def make_body_client(settings: BucketSettings, guard: ThreadGuard | None) -> Any:
    """A blocking botocore client for bodies; looks for credentials, so never on an engine's thread.

    Payloads are not hashed for the signature (they carry checksums of their own).
    """
    config = Config(
        max_pool_connections=settings.body_threads,
        **_options(settings, {"payload_signing_enabled": False}),
    )
    session = Session(profile=settings.profile)
    session.register_component("data_loader", _loader)
    client = session.create_client(
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint_url,
        config=config,
    )
    _register(client, guard)
    return client
