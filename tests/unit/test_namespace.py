"""Namespaces: golden ids, every field counts, and nothing half-right is parsed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from s3kv.core.namespace import (
    MAX_DOCUMENT_BYTES,
    GroupLayout,
    NamespaceFields,
    Refused,
    canonical_json,
    check_hash_algorithm,
    differing_fields,
    form_namespace,
    parse_namespace_document,
)
from s3kv.errors import Corrupt, Mismatch
from tests.fakes.namespaces import GROUP, LAYOUT, namespace_fields

GOLDEN = json.loads((Path(__file__).parent / "golden" / "namespaces.json").read_text())

FIELDS = namespace_fields()


@pytest.mark.parametrize("vector", GOLDEN, ids=[vector["name"] for vector in GOLDEN])
def test_ids_are_those_of_the_golden_vectors(vector: dict[str, Any]) -> None:
    document = canonical_json(vector["fields"]).encode("ascii")

    namespace = parse_namespace_document(document)

    assert namespace.id == vector["id"]
    assert [layout.digest() for layout in namespace.fields.layout] == vector["layout_digests"]


def test_the_example_of_these_tests_is_the_first_golden_vector() -> None:
    assert form_namespace(FIELDS).id == GOLDEN[0]["id"]


def test_the_id_is_the_beginning_of_the_documents_sha256() -> None:
    namespace = form_namespace(FIELDS)

    assert namespace.id == hashlib.sha256(namespace.document).hexdigest()[:32]
    assert namespace.document.isascii()
    assert b" " not in namespace.document
    assert json.loads(namespace.document).keys() == {f.name for f in dataclasses.fields(FIELDS)}


def in_group(**change: Any) -> Callable[[NamespaceFields], NamespaceFields]:
    layout = replace(LAYOUT, groups=(replace(GROUP, **change),))
    return lambda fields: replace(fields, layout=(layout,))


def in_layout(**change: Any) -> Callable[[NamespaceFields], NamespaceFields]:
    return lambda fields: replace(fields, layout=(replace(LAYOUT, **change),))


def in_fields(**change: Any) -> Callable[[NamespaceFields], NamespaceFields]:
    return lambda fields: replace(fields, **change)


CHANGES: dict[str, Callable[[NamespaceFields], NamespaceFields]] = {
    "engine": in_fields(engine="sglang"),
    "label": in_fields(label="tenant \N{SNOWMAN}"),
    "weights": in_fields(weights="full:" + "ab" * 32),
    "weights_epoch": in_fields(weights_epoch=1),
    "model_config": in_fields(model_config="ce" * 32),
    "model_dtype": in_fields(model_dtype="torch.float16"),
    "kv_cache_dtype": in_fields(kv_cache_dtype="fp8_e4m3"),
    "kv_scales": in_fields(kv_scales="checkpoint"),
    "quantization": in_fields(quantization="awq"),
    "hf_overrides": in_fields(hf_overrides='{"rope_theta":1}'),
    "rope": in_fields(rope='{"rope_theta":100001}'),
    "max_model_len": in_fields(max_model_len=8192),
    "drafter": in_fields(drafter="eagle:x"),
    "tensor_parallel_size": in_fields(tensor_parallel_size=2),
    "pipeline_parallel_size": in_fields(pipeline_parallel_size=2, layout=(LAYOUT, LAYOUT)),
    "prefill_context_parallel_size": in_fields(prefill_context_parallel_size=2),
    "decode_context_parallel_size": in_fields(decode_context_parallel_size=2),
    "cp_interleave_tokens": in_fields(cp_interleave_tokens=16),
    "replicas": in_fields(replicas=2),
    "hash_algorithm": in_fields(hash_algorithm="sha256"),
    "hash_block_size": in_fields(hash_block_size=8),
    "block_tokens": in_fields(block_tokens=32),
    "chunk_tokens": in_fields(chunk_tokens=512),
    "layout.0.kv_cache_layout": in_layout(kv_cache_layout="BLHNC"),
    "layout.0.cpu_isa": in_layout(cpu_isa="amx"),
    "layout.0.groups.1.spec": in_layout(groups=(GROUP, GROUP)),
    "layout.0.groups.0.spec": in_group(spec="MLAAttentionSpec"),
    "layout.0.groups.0.attention_backend": in_group(attention_backend="FLASH_ATTN"),
    "layout.0.groups.0.dtype": in_group(dtype="torch.float32"),
    "layout.0.groups.0.block_size": in_group(block_size=32),
    "layout.0.groups.0.kv_head_count": in_group(kv_head_count=6),
    "layout.0.groups.0.head_size": in_group(head_size=128),
    "layout.0.groups.0.head_size_v": in_group(head_size_v=128),
    "layout.0.groups.0.page_bytes": in_group(page_bytes=12289),
    "layout.0.groups.0.window_tokens": in_group(window_tokens=512),
    "layout.0.groups.0.page_shapes.1.0": in_group(page_shapes=((2, 3), (5,))),
    "layout.0.groups.0.layer_names.0": in_group(layer_names=GROUP.layer_names[::-1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changing_any_field_changes_the_id_and_is_named(name: str) -> None:
    before, after = form_namespace(FIELDS), form_namespace(CHANGES[name](FIELDS))

    assert before.id != after.id
    assert name in differing_fields(before.document, after.document)


def test_the_table_of_changes_leaves_no_field_out() -> None:
    names = set(CHANGES) | {"format_version", "layout"}
    group_names = {name.split(".")[4] for name in CHANGES if ".groups.0." in name}

    assert {field.name for field in dataclasses.fields(NamespaceFields)} <= names
    assert {field.name for field in dataclasses.fields(GroupLayout)} <= group_names


def test_every_change_gives_an_id_of_its_own() -> None:
    ids = [form_namespace(change(FIELDS)).id for change in CHANGES.values()]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", CHANGES)
def test_a_document_parses_back_to_the_same_namespace(name: str) -> None:
    namespace = form_namespace(CHANGES[name](FIELDS))

    assert parse_namespace_document(namespace.document) == namespace


def test_a_single_change_is_the_only_field_named() -> None:
    before = form_namespace(FIELDS).document

    for name in ("weights_epoch", "layout.0.groups.0.page_bytes", "layout.0.cpu_isa"):
        assert differing_fields(before, form_namespace(CHANGES[name](FIELDS)).document) == [name]
    assert differing_fields(before, before) == []


def test_documents_of_any_form_can_be_compared() -> None:
    assert differing_fields('{"a":{"b":1},"c":[]}', '{"a":{"b":true},"c":[1]}') == [
        "a.b",
        "c",
        "c.0",
    ]
    assert differing_fields("7", b'{"a":null}') == ["", "a"]
    with pytest.raises(Corrupt):
        differing_fields("{}", "{")
    with pytest.raises(Corrupt):
        differing_fields("{}", "[" * 100_000)


def test_nesting_of_any_depth_is_compared_or_corrupt() -> None:
    refused = 0
    for depth in range(600, 1001):
        try:
            assert differing_fields("[" * depth + "1" + "]" * depth, "1")
        except Corrupt:
            refused += 1

    assert 0 < refused < 401


def test_the_layout_digest_covers_what_a_worker_sees() -> None:
    assert len(LAYOUT.digest()) == 64
    assert LAYOUT.digest() == replace(LAYOUT).digest()
    assert LAYOUT.digest() != replace(LAYOUT, cpu_isa="amx").digest()


def test_an_unknown_format_version_is_a_mismatch_whatever_else_it_holds() -> None:
    with pytest.raises(Mismatch, match="format '2'; this build reads '1': upgrade"):
        parse_namespace_document(b'{"format_version":2,"anything":[]}')
    with pytest.raises(ValueError, match="version 2"):
        form_namespace(replace(FIELDS, format_version=2))


def edited(path: str, value: object) -> bytes:
    document = json.loads(form_namespace(FIELDS).document)
    *parents, last = path.split(".")
    target = document
    for name in parents:
        target = target[int(name)] if isinstance(target, list) else target[name]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return canonical_json(document).encode("ascii")


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"format_version":true}',
        b'{"format_version":"1"}',
        b'{"format_version":1}',
        form_namespace(FIELDS).document + b"\n",
        form_namespace(FIELDS).document.replace(b",", b", ", 1),
        b" " * (MAX_DOCUMENT_BYTES + 1),
        edited("label", ...),
        edited("more", 1),
        edited("replicas", True),
        edited("replicas", 0),
        edited("replicas", "1"),
        edited("replicas", 1.0),
        edited("max_model_len", -1),
        edited("weights", ""),
        edited("label", None),
        edited("layout", {}),
        edited("layout", []),
        edited("layout.0.groups.0.layer_names", "abc"),
        edited("layout.0.groups.0.layer_names", [1]),
        edited("layout.0.groups.0.more", 1),
        edited("layout.0.groups.0.page_shapes", [[1, "2"]]),
    ],
)
def test_documents_that_nobody_wrote_are_corrupt(document: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_namespace_document(document)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"weights_epoch": -1}, "weights_epoch is -1"),
        ({"weights": ""}, "weights and engine must be named"),
        ({"pipeline_parallel_size": 2}, "1 layouts for 2 pipeline stages"),
    ],
)
def test_fields_that_no_engine_has_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(FIELDS, **change)


def test_fields_too_large_to_be_read_back_are_not_written() -> None:
    with pytest.raises(ValueError, match="bytes"):
        form_namespace(replace(FIELDS, label="x" * MAX_DOCUMENT_BYTES))


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor"])
def test_stable_hash_algorithms_are_accepted(name: str) -> None:
    assert check_hash_algorithm(name) == name


@pytest.mark.parametrize("name", ["xxhash", "xxhash_cbor", "builtin", "", "SHA256", "sha512"])
def test_other_hash_algorithms_are_refused_by_name_with_a_remedy(name: str) -> None:
    answer = check_hash_algorithm(name)

    assert isinstance(answer, Refused)
    assert name in answer.reason
    assert "--prefix-caching-hash-algo sha256_cbor" in answer.reason
