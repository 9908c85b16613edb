"""Which namespaces a command is about, and whether the store can carry what it wants to write."""

from __future__ import annotations

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import Capabilities, probe_capabilities
from s3kv.cli.connection import REQUEST_TIMEOUT_S
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import check_namespace_id
from s3kv.errors import ConfigError, Transient

_NAMED_MAX = 5
_SHORT_ID = 12


async def namespaces(store: ObjectStore) -> list[NamespaceId]:
    """The namespaces under the prefix, by id. Raises `S3KVError`."""
    folders = await store.list_prefixes("", timeout_s=REQUEST_TIMEOUT_S)
    names = (NamespaceId(folder[:-1]) for folder in folders)
    return sorted(name for name in names if _is_id(name))


async def choose_namespace(store: ObjectStore, uri: str, text: str | None) -> NamespaceId:
    """The one namespace that is meant. text: its id or the beginning; None: there is only one.

    Raises `ConfigError` if no or several namespaces fit, `S3KVError`.
    """
    known = await namespaces(store)
    fitting = [name for name in known if name.startswith(text or "")]
    if len(fitting) == 1:
        return fitting[0]
    if not known:
        raise ConfigError("uri", uri, "no archive under this prefix", "s3kv ls shows what is there")
    if not fitting:
        raise ConfigError("NAMESPACE", text, "no such namespace", "s3kv ls lists them")
    names = ", ".join(name[:_SHORT_ID] for name in fitting[:_NAMED_MAX])
    raise ConfigError(
        "NAMESPACE", text, f"{len(fitting)} namespaces fit", f"name one of them: {names}"
    )


async def require_index(store: ObjectStore, uri: str, why: str = "") -> None:
    """An index may be written to here, as engines would see it too (docs/adr/0004).

    why: what the command would do without an index, half a sentence. Raises `ConfigError` if it
    may not, or if nothing may be written; else as `carries_index`.
    """
    found = await _probed(store)
    if not found.carries_index:
        problem = "; ".join([*found.problems, *([why] if why else [])])
        raise ConfigError("uri", uri, problem, "s3kv doctor says what the store lacks")


async def carries_index(store: ObjectStore) -> bool:
    """Whether the index may be written to. Probes with one object that is deleted again.

    Raises `Transient` if that could not be found out; `Denied` if the prefix cannot be read.
    """
    return (await _probed(store)).carries_index


async def _probed(store: ObjectStore) -> Capabilities:
    found = await probe_capabilities(store, timeout_s=REQUEST_TIMEOUT_S)
    if not found.carries_index and not found.certain:
        seen = "; ".join(found.problems)
        raise Transient(f"cannot tell whether the store can carry an index: {seen}")
    return found


def _is_id(name: NamespaceId) -> bool:
    try:
        check_namespace_id(name)
    except ValueError:
        return False
    return True
