"""`s3kv explain URI`: which chunks of a prompt are archived, and why the first missing one is not.

Keys are derived as the engine does; index and bucket are asked, nothing is written. Exit code: 0
the whole prompt is there, 1 something is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from s3kv.bucket.base import ObjectStore
from s3kv.cli.bounds_view import default_pace
from s3kv.cli.choosing import choose_namespace, namespaces
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.prompt_keys import Prompt, read_prompt
from s3kv.cli.prompt_options import PromptOptions
from s3kv.cli.prompt_view import Candidate, PromptView, read_candidate, read_view
from s3kv.core.bounds import Staleness, staleness
from s3kv.core.explaining import Seen, first_missing, request_says
from s3kv.core.ids import NamespaceId
from s3kv.core.namespace import Namespace, differing_fields
from s3kv.core.reasons import MissReason
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Difference:
    """A namespace's field, by its dotted name, and its values as JSON; `-` for none."""

    field: str
    there: str
    here: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another namespace that has the prompt. listed_tokens: from its start on, or found by name."""

    namespace: Namespace
    listed_tokens: int

    def differences(self, here: Namespace) -> list[Difference]:
        """The fields that keep an engine of one from using the other."""
        there_document, here_document = self.namespace.document, here.document
        return [
            Difference(name, _value_at(there_document, name), _value_at(here_document, name))
            for name in differing_fields(there_document, here_document)
        ]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the answer says. unread: namespaces that could not be looked at, and why."""

    view: PromptView
    elsewhere: tuple[Elsewhere, ...]
    unread: Mapping[NamespaceId, str]
    bounds: Staleness

    @property
    def first_missing(self) -> Seen | None:
        """The first of the prompt's own chunks that is not there."""
        return first_missing(self.view.own)

    @property
    def reason(self) -> MissReason | None:
        """What the request of a running engine would report; None for a hit."""
        if self.view.candidate.index.whole.pause.loads:
            return MissReason.PAUSED
        if not self.view.own:
            return MissReason.SHORT
        return None if self.view.hit_tokens else request_says(self.view.own[0])


async def explain(
    options: Options, prompt_options: PromptOptions, namespace: str | None, output: Output
) -> int:
    """Print what becomes of a prompt. namespace: an id or its beginning; None: where it is found.

    Raises `ConfigError`, `S3KVError`.
    """
    from s3kv.cli.explain_view import document_of, show

    settings = bucket_settings(options)
    prompt = read_prompt(prompt_options)
    uri = settings.address.uri
    async with opened(settings) as store:
        found = await explanation(store, uri, prompt, namespace, output)
    exit_code = EXIT_OK if found.view.is_whole else EXIT_LIMITED
    document = {"uri": uri, "exit_code": exit_code, **document_of(found)}
    output.answer(document, lambda: show(found, output))
    return exit_code


async def explanation(
    store: ObjectStore,
    uri: str,
    prompt: Prompt,
    namespace: str | None,
    output: Output,
) -> Explanation:
    """Look at the namespace that is named, or else at the one that lists most of the prompt.

    Other namespaces are read only if something is missing there. output: for the progress only.
    Raises `ConfigError` if no namespace fits or can be read, `S3KVError`.
    """
    search = _Search(store, prompt, output)
    known = await namespaces(store)
    if namespace is not None or not known:
        known = [await choose_namespace(store, uri, namespace)]
    for ns in known:
        await search.read(ns)
    if search.best is None:
        problem = search.unread[known[0]]
        raise ConfigError("NAMESPACE", known[0], problem, "s3kv stat shows what is there")
    with output.bar("looking at chunks", len(search.best.derived.chunks)) as tell:
        view = await read_view(store, search.best, tell)
    if namespace is not None and not view.is_whole:
        for ns in await namespaces(store):
            if ns != view.candidate.namespace.id:
                await search.read_other(ns)
    return Explanation(view, tuple(search.others), search.unread, staleness(default_pace()))


class _Search:
    """Reads namespaces and keeps one index, since they may be large. Owned by one task.

    best: the one that lists most of the prompt, of equals the one that was used last.
    """

    def __init__(self, store: ObjectStore, prompt: Prompt, output: Output) -> None:
        self.best: Candidate | None = None
        self.others: list[Elsewhere] = []
        self.unread: dict[NamespaceId, str] = {}
        self._store, self._prompt, self._output = store, prompt, output
        self._clock = Clock()

    async def read(self, ns: NamespaceId) -> None:
        """It may be the best."""
        found = await self._candidate(ns)
        if found is None:
            return
        if self.best is None or _rank(found) > _rank(self.best):
            found, self.best = self.best, found
        self._demote(found)

    async def read_other(self, ns: NamespaceId) -> None:
        """It is not, whatever it lists."""
        self._demote(await self._candidate(ns))

    async def _candidate(self, ns: NamespaceId) -> Candidate | None:
        with self._output.progress(f"reading the index of {ns}"):
            found = await read_candidate(self._store, ns, self._prompt, self._clock)
        if isinstance(found, Candidate):
            return found
        self.unread[ns] = found
        return None

    def _demote(self, found: Candidate | None) -> None:
        if found is not None and found.listed_tokens:
            self.others.append(Elsewhere(found.namespace, found.listed_tokens))


def _rank(candidate: Candidate) -> tuple[int, int]:
    return candidate.listed_tokens, candidate.last_used_s


def _value_at(document: bytes, path: str) -> str:
    """What a namespace document has under a dotted name."""
    value = json.loads(document)
    for step in path.split("."):
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return "-"
    return json.dumps(value)
