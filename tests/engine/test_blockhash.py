"""Block hashes derived without an engine are those of the real functions (no engine is started)."""

from __future__ import annotations

import random
import warnings

import pytest

from s3kv.core.blockhash import block_hashes, root_hash

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

HASH_BLOCK = 16


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("salt", ["", "tenant-\u00e4", "a" * 300])
@pytest.mark.parametrize("seed", [None, "0"])
def test_hashes_are_those_of_the_engine_for_any_tokens(
    algorithm: str, salt: str, seed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_with = get_hash_fn_by_name(algorithm)
    # `init_none_hash` sets it for the whole process; other tests have an engine there.
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"", raising=False)
    monkeypatch.setattr(kv_cache_utils, "_NONE_HASH_SEED", None, raising=False)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    kv_cache_utils.init_none_hash(hash_with)
    numbers = random.Random(f"{algorithm} {salt} {seed}")
    token_ids = [
        numbers.randrange(1 << numbers.randrange(1, 33)) for _ in range(6 * HASH_BLOCK + 5)
    ]

    request = Request(
        "r",
        token_ids,
        SamplingParams(max_tokens=1),
        None,
        cache_salt=salt or None,
        block_hasher=kv_cache_utils.get_request_block_hasher(HASH_BLOCK, hash_with),
    )

    given = {} if seed is None else {"seed": seed}
    assert root_hash(algorithm, **given) == kv_cache_utils.NONE_HASH
    assert block_hashes(algorithm, token_ids, HASH_BLOCK, salt=salt, **given) == (
        request.block_hashes
    )
