"""A NAMESPACE.json of which only a later pipeline stage describes no shard: told, never raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from s3kv.bucket.memory import MemoryStore
from s3kv.cli.explain import explanation
from s3kv.cli.listing import Unread, read_namespace
from s3kv.cli.output import Output
from s3kv.cli.subjects import read_subjects
from s3kv.core.namespace import Namespace
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock
from tests.fakes.prompt_archive import PromptArchive, namespace_of, prompt_of, token_ids


def odd_namespace() -> Namespace:
    """Two stages; the second one's pages have no bytes."""
    layout = namespace_of().fields.layout[0]
    empty = replace(layout, groups=(replace(layout.groups[0], page_bytes=0),))
    return namespace_of(pipeline_parallel_size=2, layout=(layout, empty))


async def test_every_command_is_told_that_a_stage_describes_no_shard() -> None:
    store, namespace = MemoryStore(), odd_namespace()
    await PromptArchive(store, namespace).describe()
    says = "NAMESPACE.json describes no shard: group FullAttentionSpec"

    view = await read_namespace(store, namespace.id)
    subjects = await read_subjects(store, Clock(), [namespace.id])

    assert isinstance(view, Unread)
    assert says in view.reason
    assert says in subjects.unknown[namespace.id]
    with pytest.raises(ConfigError, match=says):
        await explanation(store, "s3://bucket/p", prompt_of(token_ids(10, 1)), None, Output("json"))
