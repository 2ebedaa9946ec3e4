"""Configs that an older version saved, whose keys had another meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor

from lightning_ding.config import deep_merge
from lightning_ding.policy import A2CPolicy, DQNPolicy, Policy, SACPolicy, create_policy, get_policy_cls
from lightning_ding.policy.load import load_policy

Config = dict[str, Any]
VECTOR = {"obs_shape": 4, "action_shape": 2}
IMAGE = {"obs_shape": [3, 40, 40], "action_shape": 2}


def saved_by_an_older_version(policy: Policy[Any], **changes: Any) -> Config:
    """Return a policy's saved config as versions without ``cfg_type`` wrote it."""
    return deep_merge({key: value for key, value in policy.hparams["cfg"].items() if key != "cfg_type"}, changes)


@pytest.mark.parametrize(
    ("name", "model", "changes", "expected"),
    [
        ("a2c", {**VECTOR, "action_space": "discrete"}, {"learn": {"value_weight": 0.5}}, {"value_weight": 0.25}),
        ("ppo", {**VECTOR, "action_space": "discrete"}, {"learn": {"value_weight": 0.5}}, {"value_weight": 0.5}),
        ("sac", VECTOR, {"model": {"actor_head_layer_num": 3}}, {"actor_head_layer_num": 2}),
        ("td3", VECTOR, {"model": {"critic_head_layer_num": 1}}, {"critic_head_layer_num": 0}),
        (
            "dqn",
            IMAGE,
            {"model": {"encoder_hidden_size_list": [8, 9, 10]}},
            {"encoder_hidden_size_list": None, "encoder_kwargs": {"channels": (8, 9), "feature_size": 10}},
        ),
        ("dqn", VECTOR, {"model": {"encoder_hidden_size_list": [8, 9]}}, {"encoder_hidden_size_list": (8, 9)}),
    ],
)
def test_keys_of_an_older_version_are_translated(name: str, model: Config, changes: Config, expected: Config) -> None:
    policy = create_policy({"type": name, "model": model})
    again = get_policy_cls({"type": name})(saved_by_an_older_version(policy, **changes))
    section = again.config.learn if "learn" in changes else again.config.model
    assert {key: getattr(section, key) for key in expected} == expected


def test_config_of_this_version_keeps_its_numbers() -> None:
    policy = SACPolicy({"model": {**VECTOR, "actor_head_layer_num": 3}})
    for cfg in (policy.hparams["cfg"], policy.cfg, {"model": {**VECTOR, "actor_head_layer_num": 3}}):
        assert SACPolicy(cfg).config == policy.config


def test_saved_head_without_hidden_layers_is_refused() -> None:
    policy = SACPolicy({"model": VECTOR})
    with pytest.raises(ValueError, match=r"model.actor_head_layer_num must be >= 1 in a config that an older version"):
        SACPolicy(saved_by_an_older_version(policy, model={"actor_head_layer_num": 0}))


def checkpoint_of(policy: Policy[Any], folder: Path, **changes: Any) -> Path:
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(policy)
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
    checkpoint["hyper_parameters"] = {"cfg": saved_by_an_older_version(policy, **changes)}
    torch.save(checkpoint, folder / "older.ckpt")
    return folder / "older.ckpt"


def test_policy_is_loaded_from_the_checkpoint_of_an_older_version(tmp_path: Path) -> None:
    policy = SACPolicy({"model": VECTOR})
    older = {"model": {"actor_head_layer_num": 2, "critic_head_layer_num": 2}}
    loaded = SACPolicy.load_from_checkpoint(checkpoint_of(policy, tmp_path, **older))
    assert loaded.config == policy.config
    pairs: Any = zip(loaded.model.parameters(), policy.model.parameters(), strict=True)
    assert all(Tensor.equal(one, other) for one, other in pairs)


def test_weight_that_repeats_the_number_of_an_older_version_is_refused() -> None:
    model = {**VECTOR, "action_space": "discrete"}
    checkpoint: Config = {"progress": A2CPolicy({"model": model}).progress.state_dict()}
    saved = saved_by_an_older_version(A2CPolicy({"model": model}), learn={"value_weight": 0.5})
    checkpoint["hyper_parameters"] = {"cfg": saved}
    A2CPolicy({"model": model}).on_load_checkpoint(checkpoint)  # 0.25 is what 0.5 meant
    repeated = A2CPolicy({"model": model, "learn": {"value_weight": 0.5}})
    expected = (
        "learn.value_weight must be 0.25, which is what 0.5 meant in the version that wrote the checkpoint, got 0.5"
    )
    with pytest.raises(ValueError, match=expected):
        repeated.on_load_checkpoint(checkpoint)


def test_part_of_a_config_that_a_user_wrote_is_not_translated() -> None:
    cfg = {"model": {**IMAGE, "encoder_hidden_size_list": [8, 9, 10]}, "learn": {"batch_size": 4}}
    assert DQNPolicy(cfg).config.model.encoder_hidden_size_list == (8, 9, 10)


def without_dict_encoder(policy: Policy[Any]) -> Config:
    """Return a policy's saved config as versions without ``model.dict_encoder`` wrote it."""
    cfg = deep_merge(policy.hparams["cfg"], {})
    del cfg["model"]["dict_encoder"]
    return cfg


@pytest.mark.parametrize("encoder", [None, "dict"])
@pytest.mark.parametrize("name", ["dqn", "ppo", "sac", "dt"])
def test_network_of_a_dict_from_an_older_version_is_loaded(name: str, encoder: str | None, tmp_path: Path) -> None:
    model: Config = {"obs_shape": {"a": 2, "b": 3}, "action_shape": 2}
    model |= {"action_space": "discrete"} if name in ("ppo", "dt") else {}
    policy = create_policy({"type": name, "model": {**model, "dict_encoder": "separate"}})
    path = checkpoint_of(policy, tmp_path)
    older = torch.load(path, weights_only=True)
    older["hyper_parameters"] = {"cfg": deep_merge(without_dict_encoder(policy), {"model": {"encoder": encoder}})}
    torch.save(older, path)
    loaded = load_policy(path)
    assert loaded.config.model == policy.config.model
    pairs: Any = zip(loaded.model.parameters(), policy.model.parameters(), strict=True)
    assert all(Tensor.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("shape", [4, (3, 7, 7), {"kind": "one_hot", "sizes": [3]}])
def test_other_networks_of_the_same_version_are_not_changed(shape: Any) -> None:
    policy = DQNPolicy({"model": {"obs_shape": shape, "action_shape": 2}})
    assert DQNPolicy(without_dict_encoder(policy)).config == policy.config


def test_run_that_resumes_a_network_of_an_older_version_names_the_option() -> None:
    model: Config = {"obs_shape": {"a": 2, "b": 3}, "action_shape": 2}
    older = DQNPolicy({"model": {**model, "dict_encoder": "separate"}})
    checkpoint: Config = {"progress": older.progress.state_dict()}
    checkpoint["hyper_parameters"] = {"cfg": without_dict_encoder(older)}
    older.on_load_checkpoint(checkpoint)
    expected = (
        "model.dict_encoder must be 'separate', which is the only one of the version that wrote the checkpoint, "
        "got 'joined'"
    )
    with pytest.raises(ValueError, match=expected):
        DQNPolicy({"model": model}).on_load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("model", "layers"),
    [({}, 0), ({"head_hidden_size": 8}, None), ({"dueling": True}, None), ({"head_layer_num": 2}, 2)],
)
@pytest.mark.parametrize("name", ["iqn", "fqf"])
def test_head_of_quantile_levels_from_an_older_version_is_loaded(name: str, model: Config, layers: int | None) -> None:
    older = {"head_layer_num": 0} if not model else {}  # such a version's None
    policy = create_policy({"type": name, "model": {**VECTOR, **model, **older}})
    cfg = deep_merge(without_dict_encoder(policy), {"model": {"head_layer_num": model.get("head_layer_num")}})
    again: Any = get_policy_cls({"type": name})(cfg)
    again.model.load_state_dict(policy.model.state_dict())
    assert again.config.model.head_layer_num == layers


def test_run_that_resumes_quantile_levels_of_an_older_version_names_the_option() -> None:
    older = create_policy({"type": "iqn", "model": VECTOR})
    checkpoint: Config = {
        "progress": older.progress.state_dict(),
        "hyper_parameters": {"cfg": without_dict_encoder(older)},
    }
    expected = "model.head_layer_num must be 0, which is what None meant in the version that wrote .*, got None"
    with pytest.raises(ValueError, match=expected):
        create_policy({"type": "iqn", "model": VECTOR}).on_load_checkpoint(checkpoint)
    create_policy({"type": "iqn", "model": {**VECTOR, "head_layer_num": 0}}).on_load_checkpoint(checkpoint)
