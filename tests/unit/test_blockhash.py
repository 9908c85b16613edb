"""Block hashes without an engine: the engine's own values, and what is refused."""

from __future__ import annotations

import pytest

from s3kv.core.blockhash import block_hashes, root_hash
from tests.fakes.prompts import CHAINS, HASH_BLOCK, ROOTS, SALT, TOKEN_IDS

ALGORITHMS = ("sha256", "sha256_cbor")


@pytest.mark.parametrize(("algorithm", "salt"), CHAINS)
def test_hashes_are_those_of_the_engine(algorithm: str, salt: str) -> None:
    found = block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK, salt=salt)

    assert tuple(each.hex() for each in found) == CHAINS[algorithm, salt]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_parent_is_the_engine_s(algorithm: str) -> None:
    assert root_hash(algorithm).hex() == ROOTS[algorithm]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("token_count", [0, 1, 7, 8, 15, 16, 32])
def test_only_whole_blocks_have_a_hash_and_a_prefix_has_the_same_ones(
    algorithm: str, token_count: int
) -> None:
    found = block_hashes(algorithm, TOKEN_IDS[:token_count], HASH_BLOCK)

    assert found == block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK)[: token_count // HASH_BLOCK]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_salt_seed_and_algorithm_all_change_every_hash(algorithm: str) -> None:
    plain = block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK)
    others = [
        block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK, salt=SALT),
        block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK, salt="tenant-b"),
        block_hashes(algorithm, TOKEN_IDS, HASH_BLOCK, seed="0"),
        block_hashes(next(a for a in ALGORITHMS if a != algorithm), TOKEN_IDS, HASH_BLOCK),
    ]

    for other in others:
        assert not set(plain) & set(other)
    assert len({chain[-1] for chain in [plain, *others]}) == 5


@pytest.mark.parametrize("name", ["xxhash", "xxhash_cbor", "md5", ""])
def test_an_algorithm_that_names_no_shards_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name or "''"):
        block_hashes(name, TOKEN_IDS, HASH_BLOCK)


def test_what_no_engine_hashes_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 0"):
        block_hashes("sha256_cbor", TOKEN_IDS, 0)
    with pytest.raises(ValueError, match="negative"):
        block_hashes("sha256_cbor", [1, -1], 1)
