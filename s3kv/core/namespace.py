"""What makes shards interchangeable, written down field by field.

Rule upheld here: two engines share shards only if every field below is equal. The fields are an
explicit list (never `str()` of an engine's object, whose fields change between versions), written
as canonical JSON; the namespace id is the first 32 hex digits of its SHA-256. `NAMESPACE.json`
holds that JSON and nothing else, so that racing creators write equal bytes. How the values are
found out is not decided here: `s3kv.core.weights` and the connector do that.

A field that is added, removed or means something else is a new `NAMESPACE_FORMAT_VERSION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import GenericAlias
from typing import Final, TypeVar, get_args, get_type_hints

from s3kv.core.ids import NamespaceId
from s3kv.errors import Corrupt, NewerFormat

NAMESPACE_FORMAT_VERSION: Final = 1
MAX_DOCUMENT_BYTES: Final = 1 << 20

_MISSING: Final = object()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """One KV-cache group as a writer's process sees it.

    spec: class name of the engine's cache spec; attention_backend: class name; dtype: of the cache
    tensor; block_size: tokens; kv_head_count: heads on this rank; head_size, head_size_v: of keys
    and values (equal but for a few models); page_bytes: one layer's stored bytes of a block,
    without padding; window_tokens: sliding window or local chunk, 0 for full attention;
    page_shapes: how the backend divides a layer's block (kernel blocks, heads, states, content),
    one for each shape that occurs; layer_names: in the order of the pages in a shard.
    """

    spec: str
    attention_backend: str
    dtype: str
    block_size: int
    kv_head_count: int
    head_size: int
    head_size_v: int
    page_bytes: int
    window_tokens: int
    page_shapes: tuple[tuple[int, ...], ...]
    layer_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDescriptor:
    """What the bytes of a page mean on one pipeline stage.

    kv_cache_layout: the engine's name of the physical order; cpu_isa: instruction set by which the
    CPU backend packs keys, "" on other devices; groups: in the order of the tensors in a shard.
    """

    kv_cache_layout: str
    cpu_isa: str
    groups: tuple[GroupLayout, ...]

    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the canonical JSON: what workers and scheduler compare."""
        return hashlib.sha256(canonical_json(asdict(self)).encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFields:
    """Every field of a namespace; none has a default, so that none is forgotten.

    label: the user's own division, "" by default; it never replaces another field. weights: digest
    of the weight files (`s3kv.core.weights`) or the user's literal value; weights_epoch: raised
    when weights are changed in place. model_config: digest of the model's own configuration, which
    says what is computed with them. kv_scales: where fp8 scales come from, "" without.
    quantization, drafter (model and method when speculating): "" for none. hf_overrides, rope:
    canonical JSON of the settings that change what is computed, "" for none; max_model_len: tokens
    where the rope settings depend on it, else 0. layout: one descriptor per pipeline stage, in
    order. cp_interleave_tokens: of context parallelism, 1 without. replicas: how many ranks hold
    equal heads. hash_block_size, block_tokens, chunk_tokens: tokens per hash of the engine's chain,
    per scheduler block, and per full chunk.

    Raises ValueError if a number is negative, or a size or count that must be positive is 0.
    """

    format_version: int
    engine: str
    label: str
    weights: str
    weights_epoch: int
    model_config: str
    model_dtype: str
    kv_cache_dtype: str
    kv_scales: str
    quantization: str
    hf_overrides: str
    rope: str
    max_model_len: int
    drafter: str
    layout: tuple[LayoutDescriptor, ...]
    tensor_parallel_size: int
    pipeline_parallel_size: int
    prefill_context_parallel_size: int
    decode_context_parallel_size: int
    cp_interleave_tokens: int
    replicas: int
    hash_algorithm: str
    hash_block_size: int
    block_tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        """Refuse values that no running engine has: they are a caller's mistake."""
        for name in ("weights_epoch", "max_model_len"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}")
        for name in _POSITIVE_FIELDS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if not self.weights or not self.engine:
            raise ValueError("weights and engine must be named: what is unknown is not shared")
        if len(self.layout) != self.pipeline_parallel_size:
            raise ValueError(
                f"{len(self.layout)} layouts for {self.pipeline_parallel_size} pipeline stages"
            )


_POSITIVE_FIELDS: Final = (
    "format_version",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
    "cp_interleave_tokens",
    "replicas",
    "hash_block_size",
    "block_tokens",
    "chunk_tokens",
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace's fields, its document (the body of NAMESPACE.json) and its id.

    Made by `form_namespace` and `parse_namespace_document` only; equal documents have equal ids.
    """

    fields: NamespaceFields
    document: bytes
    id: NamespaceId


@dataclass(frozen=True, slots=True)
class Refused:
    """A setting under which nothing may be saved or loaded, and why, in words for the user."""

    reason: str


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value: sorted keys, no whitespace, ASCII, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def form_namespace(namespace_fields: NamespaceFields) -> Namespace:
    """Write the fields down canonically and derive the id.

    Raises ValueError for a format version that is not ours, or above MAX_DOCUMENT_BYTES.
    """
    if namespace_fields.format_version != NAMESPACE_FORMAT_VERSION:
        raise ValueError(f"cannot write format version {namespace_fields.format_version}")
    document = canonical_json(asdict(namespace_fields)).encode("ascii")
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"namespace fields of {len(document)} bytes")
    digest = hashlib.sha256(document).hexdigest()
    return Namespace(namespace_fields, document, NamespaceId(digest[:32]))


def parse_namespace_document(document: bytes) -> Namespace:
    """Read a NAMESPACE.json.

    Raises NewerFormat for a format version that is not ours, and Corrupt for anything that
    `form_namespace` does not write: bytes that only mean the same would have another id.
    """
    if len(document) > MAX_DOCUMENT_BYTES:
        raise Corrupt(f"namespace document of {len(document)} bytes")
    value = _parsed_json(document)
    version = value.get("format_version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise Corrupt("namespace document without a format version")
    if version != NAMESPACE_FORMAT_VERSION:
        raise NewerFormat("NAMESPACE.json", str(version), str(NAMESPACE_FORMAT_VERSION))
    try:
        namespace = form_namespace(_built(NamespaceFields, value, "namespace"))
    except ValueError as error:
        raise Corrupt(f"namespace document: {error}") from error
    if namespace.document != document:
        raise Corrupt("namespace document is not canonical")
    return namespace


def differing_fields(left: bytes | str, right: bytes | str) -> list[str]:
    """Dotted names of the fields in which two namespace documents differ, sorted.

    Works on any two JSON documents (also of other format versions); a field that only one has
    differs; list positions are numbers (`layout.0.groups.1.page_bytes`); a document that is no
    object differs as "". Raises Corrupt if one is not JSON.
    """
    try:
        ours, theirs = _leaves(_parsed_json(left), ""), _leaves(_parsed_json(right), "")
    except RecursionError as error:
        raise Corrupt("namespace document is nested too deeply") from error
    names = ours.keys() | theirs.keys()
    return sorted(n for n in names if ours.get(n, _MISSING) != theirs.get(n, _MISSING))


def check_hash_algorithm(name: str) -> str | Refused:
    """The algorithm's name if its block hashes may name shards, else why not.

    Accepted: sha256 and sha256_cbor (recommended, canonical). Everything else, also what a newer
    engine may bring, is refused until it is known to be stable between processes and safe against
    collisions.
    """
    if name in ("sha256", "sha256_cbor"):
        return name
    remedy = "start the engine with --prefix-caching-hash-algo sha256_cbor"
    if name in ("xxhash", "xxhash_cbor"):
        return Refused(
            f"prefix caching hash algorithm {name} differs from process to process and is not "
            f"safe against collisions: {remedy}"
        )
    return Refused(f"prefix caching hash algorithm {name!r} is not known to be stable: {remedy}")


def _parsed_json(document: bytes | str) -> object:
    try:
        value: object = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"namespace document is not JSON: {type(error).__name__}") from error
    return value


def _leaves(value: object, path: str) -> dict[str, object]:
    """Dotted path -> what stands there; an empty object or list is a leaf of its own."""
    pairs: Mapping[object, object] = {}
    if isinstance(value, dict):
        pairs = value
    elif isinstance(value, list):
        pairs = dict(enumerate(value))
    if not pairs:
        return {path: canonical_json(value)}
    leaves: dict[str, object] = {}
    for name, child in pairs.items():
        leaves |= _leaves(child, f"{path}.{name}" if path else str(name))
    return leaves


def _built(kind: type[_T], value: object, path: str) -> _T:
    """`value` (parsed JSON) as `kind`: str, int, tuple[..., ...] or one of our dataclasses."""
    if isinstance(kind, GenericAlias):
        element, _ = get_args(kind)
        if not isinstance(value, list):
            raise ValueError(f"{path} is not a list")  # noqa: TRY004
        built: object = tuple(_built(element, v, f"{path}.{i}") for i, v in enumerate(value))
        return built
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise ValueError(f"{path} does not have exactly the fields {', '.join(names)}")
        return kind(**{n: _built(hints[n], value[n], f"{path}.{n}") for n in names})
    # bool is an int to isinstance, but `true` is no number.
    if type(value) is not kind:
        raise ValueError(f"{path} is not of type {kind.__name__}")
    return value
