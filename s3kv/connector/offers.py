"""From what is archived to what is promised to the engine, for one request."""

from __future__ import annotations

from s3kv.config import Settings
from s3kv.connector.identity import EngineFacts
from s3kv.connector.loads import LoadBook
from s3kv.connector.tracked import MAX_LOAD_ATTEMPTS, Promise, Tracked
from s3kv.core.lookup import Match, Miss, Unknown
from s3kv.core.plans import usable_blocks
from s3kv.core.reasons import MissReason


class Offers:
    """Owned by the engine's scheduling thread."""

    def __init__(self, facts: EngineFacts, settings: Settings, loads: LoadBook) -> None:
        """loads: what is on its way already."""
        self._facts = facts
        self._settings = settings
        self._loads = loads

    def refusal_of(self, tracked: Tracked) -> MissReason | None:
        """Why nothing may be loaded for this request, whatever is archived; None if it may."""
        if tracked.refusal:
            return tracked.refusal
        if not self._facts.loads:
            return MissReason.ROLE
        if not tracked.options.load:
            return MissReason.NOT_WANTED
        if tracked.request.skip_reading_prefix_cache:
            return MissReason.PREFIX_CACHE_SKIPPED
        if tracked.attempts >= MAX_LOAD_ATTEMPTS:
            return MissReason.ATTEMPTS_USED
        return None

    def offer(
        self, tracked: Tracked, found: Match, local_blocks: int, now_s: float
    ) -> Promise | Miss | Unknown:
        """The part of a match that the engine should load; `Unknown` while another brings it."""
        request = tracked.request
        end_block = usable_blocks(
            found.blocks,
            local_blocks,
            request.num_tokens,
            self._facts.block_tokens,
            tracked.options.max_load_tokens,
            self._settings.min_load_tokens,
        )
        if end_block <= local_blocks:
            return Miss(MissReason.NOTHING_BEYOND_LOCAL)
        wanted = [
            c for c in found.chunks if c.end_block > local_blocks and c.start_block < end_block
        ]
        if self._loads.is_loading(wanted, request.request_id):
            # Another request brings these blocks; the engine's own cache has them then. Its load
            # has a deadline, and so has this wait (FAULTS 31).
            if tracked.waits_since_s is None:
                tracked.waits_since_s = now_s
            if now_s - tracked.waits_since_s <= 2 * self._settings.load_deadline_s:
                return Unknown()
        return Promise(found.chunks, local_blocks, end_block)
