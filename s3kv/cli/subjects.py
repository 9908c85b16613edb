"""What has to be known of a namespace before its shards may be judged: the shape that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.cli.connection import REQUEST_TIMEOUT_S
from s3kv.cli.listing import Unread, read_namespace
from s3kv.cli.tally import geometry_of
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import namespace_key
from s3kv.core.namespace import Namespace
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.sweeping import Subject

SKEW_MAX_S = 300.0
"""How far this machine's clock may differ from the store's before ages are not compared."""


@dataclass(slots=True)
class Subjects:
    """known: namespaces that can be worked on; unknown: why each of the others cannot;
    skew_s: this machine's clock minus the store's, the greatest seen, 0.0 where it does not tell.
    """

    known: list[Subject] = field(default_factory=list)
    unknown: dict[NamespaceId, str] = field(default_factory=dict)
    skew_s: float = 0.0


def subject_of(namespace: Namespace) -> Subject:
    """Raises ValueError if the namespace's fields describe no shard."""
    fields = namespace.fields
    stages = [geometry_of(namespace, stage) for stage in range(len(fields.layout))]
    ranks = fields.tensor_parallel_size * fields.prefill_context_parallel_size // fields.replicas
    return Subject(
        namespace.id,
        stages[0].block_count_of,
        sum(stage.block_bytes for stage in stages) * max(1, ranks),
    )


async def read_subjects(
    store: ObjectStore, clock: Clock, chosen: Sequence[NamespaceId]
) -> Subjects:
    """Read NAMESPACE.json of each; what cannot be read is told, not raised."""
    subjects = Subjects()
    for ns in chosen:
        try:
            namespace = await read_namespace(store, ns)
            if isinstance(namespace, Unread):
                subjects.unknown[ns] = namespace.reason
                continue
            subjects.known.append(subject_of(namespace))
            skew_s = await _skew_s(store, clock, ns)
        except S3KVError as error:
            subjects.unknown[ns] = str(error)
            continue
        subjects.skew_s = max(subjects.skew_s, skew_s, key=abs)
    return subjects


async def _skew_s(store: ObjectStore, clock: Clock, ns: NamespaceId) -> float:
    found = await store.stat(namespace_key(ns), timeout_s=REQUEST_TIMEOUT_S)
    if isinstance(found, Missing) or not found.age_s:
        return 0.0
    return clock.unix_s() - (found.modified_s + found.age_s)
