"""How both sides of an engine agree on one namespace, or on none."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from s3kv.config import parse_settings
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.namespace import Namespace, differing_fields
from tests.unit.engine_values import World, caches_of, engine_of, facts_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector.agreement import IDENTIFIED_FORMATS, Agreement
    from s3kv.connector.messages import LayoutHandshake


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


GEOMETRY = ShardGeometry((GroupGeometry("full", 2, 8192),), 16)
WAIT_S = 20.0


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    caplog.set_level(logging.INFO, logger="s3kv")
    return caplog


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with one small weight file."""
    import numpy as np
    from safetensors.numpy import save_file

    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": np.arange(64, dtype=np.float32)}, str(folder / "model.safetensors"))
    return folder


def agreement_of(weights_digest: str = "auto", **facts: Any) -> Agreement:
    settings = parse_settings({"uri": "s3://bucket/prefix", "weights_digest": weights_digest})
    return Agreement(engine_of(), facts_of(**facts), settings)


def handshake(world: World, **caches: Any) -> LayoutHandshake:
    return LayoutHandshake(world.describe(caches_of(**caches)), GEOMETRY)


def namespace_in(agreement: Agreement) -> Namespace:
    agreed = agreement.result(WAIT_S)
    assert agreed is not None, agreement.refusal
    return agreed[0]


def test_nothing_is_agreed_before_every_rank_has_spoken(world: World) -> None:
    agreement = agreement_of("mine", world_size=3)
    for rank in range(3):
        for _ in range(2):  # what a rank says twice counts once
            assert agreement.result(WAIT_S) is None
            agreement.hear([replace(handshake(world), rank=rank)] if rank < 2 else [])
    agreement.hear([replace(handshake(world), rank=2)])
    agreed = agreement.result()
    assert agreed is not None
    assert agreed[0].fields.layout == (world.describe(),)
    assert agreed[1] == GEOMETRY


@pytest.mark.parametrize("position", [1, 2])
def test_ranks_that_lay_out_their_caches_differently_share_nothing(
    world: World, log: pytest.LogCaptureFixture, position: int
) -> None:
    agreement = agreement_of("mine", world_size=3)
    heard = [replace(handshake(world), rank=rank) for rank in range(3)]
    heard[position] = replace(handshake(world, layout="LBNHC"), rank=position)
    agreement.hear(heard)
    assert "differently" in agreement.refusal
    assert agreement.result(WAIT_S) is None
    assert ["the archive stays off" in r.getMessage() for r in log.records] == [True]


def test_a_worker_that_cannot_take_part_says_why_once(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    agreement = agreement_of("mine", world_size=2)
    agreement.hear([handshake(world), LayoutHandshake(None, None, "pages lie apart")])
    agreement.hear([LayoutHandshake(None, None, "pages lie apart"), handshake(world)])
    assert agreement.refusal == "pages lie apart"
    assert agreement.result(WAIT_S) is None
    assert [r.getMessage().count("pages lie apart") for r in log.records] == [1]


def test_an_engine_that_was_refused_agrees_on_nothing_and_reads_no_weights(world: World) -> None:
    agreement = agreement_of(refusal="two groups", model_path="/nowhere")
    agreement.hear([handshake(world)])
    assert agreement.result(WAIT_S) is None
    assert agreement.refusal == "two groups"


def test_a_reset_does_not_undo_a_refusal(world: World) -> None:
    agreement = agreement_of("mine")
    agreement.hear([LayoutHandshake(None, None, "pages lie apart")])
    agreement.new_epoch()
    agreement.hear([handshake(world)])
    assert agreement.result(WAIT_S) is None
    assert agreement.refusal == "pages lie apart"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"load_format": "dummy"}, "dummy weights are different in every engine"),
        ({"load_format": "gguf"}, "load format gguf"),
        ({"load_format": "bitsandbytes"}, "load format bitsandbytes"),
        ({"load_format": "tensorizer"}, "load format tensorizer"),
        ({"load_format": "sharded_state"}, "load format sharded_state"),
        ({"load_format": "what comes next"}, "load format what comes next"),
        ({"model_path": "/no/such/folder"}, "no local files of model /no/such/folder"),
        ({"model_path": "nobody/no-such-model"}, "no local files of model nobody/no-such-model"),
    ],
    ids=str,
)
def test_weights_that_cannot_be_identified_are_not_shared_and_the_remedy_is_named(
    world: World, model: Path, log: pytest.LogCaptureFixture, facts: dict[str, Any], said: str
) -> None:
    agreement = agreement_of(**{"model_path": str(model), **facts})
    agreement.hear([handshake(world)])
    assert agreement.result(WAIT_S) is None
    assert said in agreement.refusal
    assert 'set "weights_digest"' in agreement.refusal
    assert [said in r.getMessage() for r in log.records] == [True]


def test_a_folder_without_weights_is_not_identified(world: World, tmp_path: Path) -> None:
    agreement = agreement_of(model_path=str(tmp_path))
    agreement.hear([handshake(world)])
    assert agreement.result(WAIT_S) is None
    assert "no weight files" in agreement.refusal


@pytest.mark.parametrize("load_format", IDENTIFIED_FORMATS)
def test_loaders_of_plain_weight_files_are_identified_by_those(
    world: World, model: Path, load_format: str
) -> None:
    agreement = agreement_of(model_path=str(model), load_format=load_format)
    agreement.hear([handshake(world)])
    assert namespace_in(agreement).fields.weights.startswith("auto:")


def test_the_user_may_have_every_byte_read(world: World, model: Path) -> None:
    agreement = agreement_of("full", model_path=str(model))
    agreement.hear([handshake(world)])
    assert namespace_in(agreement).fields.weights.startswith("full:")


@pytest.mark.parametrize("load_format", ["auto", "dummy", "gguf"])
def test_a_user_s_own_digest_replaces_the_files_whatever_loads_them(
    world: World, load_format: str
) -> None:
    agreement = agreement_of("mine", model_path="/nowhere", load_format=load_format)
    agreement.hear([handshake(world)])
    assert namespace_in(agreement).fields.weights == "given:mine"


def test_a_user_s_own_digest_is_never_taken_for_a_real_one(world: World, model: Path) -> None:
    found = agreement_of(model_path=str(model))
    found.hear([handshake(world)])
    digest = namespace_in(found).fields.weights
    claimed = agreement_of(digest)
    claimed.hear([handshake(world)])
    assert namespace_in(claimed).id != namespace_in(found).id


def test_every_reset_begins_a_namespace_of_its_own(world: World) -> None:
    agreement, other = agreement_of("mine"), agreement_of("mine")
    for one in (agreement, other):
        one.hear([handshake(world)])
    before = namespace_in(agreement)
    assert namespace_in(agreement).id == namespace_in(other).id == before.id
    ids = {before.id}
    for one in (agreement, other, agreement, other):
        one.new_epoch()
        fresh = namespace_in(one)
        ids.add(fresh.id)
        assert differing_fields(before.document, fresh.document) == ["weights_epoch"]
        assert namespace_in(one).id == fresh.id, "until the next reset"
    assert len(ids) == 5


# ------------------------------------------------------------------- whose files
MODEL = "somebody/some-model"


def hub_cache(root: Path, revisions: dict[str, int]) -> Path:
    """A local hub cache with one snapshot for each named revision, of other weights each."""
    folder = root / ("models--" + MODEL.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    for name, seed in revisions.items():
        commit = f"{seed:040x}"
        (folder / "refs" / name).write_text(commit)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        weights = {"w": np.arange(64, dtype=np.float32) + seed}
        save_file(weights, str(snapshot / "model.safetensors"))
    return root


def weights_of(world: World, **facts: Any) -> str:
    """The digest, or why there is none."""
    agreement = agreement_of(model_path=MODEL, **facts)
    agreement.hear([handshake(world)])
    agreed = agreement.result(WAIT_S)
    return agreement.refusal if agreed is None else agreed[0].fields.weights


def test_the_digest_is_that_of_the_revision_and_cache_that_the_engine_loads_from(
    world: World, tmp_path: Path
) -> None:
    one = str(hub_cache(tmp_path / "one", {"main": 1, "v2": 2}))
    two = str(hub_cache(tmp_path / "two", {"main": 2}))
    main = weights_of(world, download_dir=one)
    assert main.startswith("auto:")
    assert weights_of(world, download_dir=one, revision="main") == main
    second = weights_of(world, download_dir=one, revision="v2")
    assert second != main
    assert weights_of(world, download_dir=two) == second, "equal bytes, equal name"
    assert "no local files" in weights_of(world, download_dir=one, revision="v3")


def test_a_model_that_comes_from_another_hub_is_not_identified_by_this_one_s_files(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(hub_cache(tmp_path, {"main": 1}))
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    assert "no local files" in weights_of(world, download_dir=cache)
