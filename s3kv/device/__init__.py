"""Pinned slots and the copies between them and the paged KV cache. Needs torch only."""
