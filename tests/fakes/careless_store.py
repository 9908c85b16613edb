"""A store that accepts conditions and ignores them: no index can be written there (ADR 0004)."""

from __future__ import annotations

from s3kv.bucket.base import CREATED, Created, Exists
from s3kv.bucket.memory import MemoryStore


class CarelessStore(MemoryStore):
    """Ignores `If-None-Match`."""

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        await self.put(key, body, timeout_s=timeout_s)
        return CREATED
