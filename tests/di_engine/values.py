"""The values that ``make_ding_values.py`` stored, and policies with the same networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_ding.policy import create_policy
from lightning_ding.policy.base.policy import Policy

VALUES = load_file(Path(__file__).with_name("ding_values.safetensors"))
GAMMA, GAE_LAMBDA = 0.875, 0.9375

_MLP = {"obs_shape": 4, "encoder_hidden_size_list": [8, 6]}
_IMAGE = {  # DI-engine does not activate the features of images
    "obs_shape": [2, 36, 36],
    "encoder_kwargs": {
        "channels": [3, 4, 3],
        "feature_size": 6,
        "kernel_size": [8, 4, 3],
        "stride": [4, 2, 1],
        "activate_features": False,
    },
}
_Q = {**_MLP, "action_shape": 3, "head_layer_num": 1}
_ATOMS = {"v_min": -3.0, "v_max": 3.0, "n_atom": 11}
_HEADS = {"actor_head_layer_num": 1, "critic_head_layer_num": 1}
_VAC = {**_MLP, **_HEADS, "action_shape": 3, "action_space": "discrete", "share_encoder": True}
_CONTINUOUS = {"action_shape": 2, "action_space": "continuous"}
_QAC = {"obs_shape": 4, "action_shape": 2, "actor_head_hidden_size": 6, "critic_head_hidden_size": 6}
_QAC_IMAGE = {
    "obs_shape": [2, 12, 12],
    "encoder_kwargs": {
        "channels": [3, 4, 5],
        "feature_size": 5,
        "kernel_size": [3, 3, 3],
        "stride": [2, 1, 1],
        "activate_features": False,
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "dqn": _Q,
    "dqn_plain": _Q | {"dueling": False},
    "dqn_image": _IMAGE | {"action_shape": 3},
    "dqn_norm": _Q | {"layer_norm": True, "encoder_kwargs": {"layer_norm": False}},  # DI-engine has it in heads only
    "dqn_multi": _Q | {"action_shape": [2, 3]},
    "c51": _Q | _ATOMS,
    "qrdqn": _Q | {"num_quantiles": 7},
    "rainbow": _Q | _ATOMS,
    "ppo": _VAC,
    "ppo_continuous": _VAC | _CONTINUOUS,
    "ppo_conditioned": _VAC | _CONTINUOUS | {"sigma_type": "conditioned", "bound_type": "tanh"},
    "ppo_multi": _VAC | {"action_shape": [2, 3]},
    "ppo_hybrid": _VAC | {"action_space": "hybrid", "action_shape": {"action_type_shape": 3, "action_args_shape": 2}},
    "ppo_image": _IMAGE | _HEADS | {"action_shape": 3, "action_space": "discrete"},
    "a2c": _VAC,
    "a2c_continuous": _VAC | _CONTINUOUS | {"share_encoder": False},
    "pg": _MLP | {"action_shape": 3, "action_space": "discrete", "actor_head_layer_num": 1},
    "pg_continuous": _MLP | _CONTINUOUS | {"actor_head_layer_num": 1},
    "ddpg": _QAC,
    "td3": _QAC,
    "sac": _QAC,
    "sac_image": _QAC | _QAC_IMAGE | {"share_encoder": True},
}
"""The section ``model`` of each case's config here, for the network of the script."""


def part(case: str, name: str) -> dict[str, Tensor]:
    """Return the stored tensors ``case/name/...`` by the last parts of their names, in their original order."""
    prefix = f"{case}/{name}/"
    found = sorted(key for key in VALUES if key.startswith(prefix))
    return {key[len(prefix) :].partition(".")[2]: VALUES[key] for key in found}


def checkpoint(case: str) -> dict[str, Any]:
    """Return the content of a checkpoint in DI-engine's layout."""
    content: dict[str, Any] = {"model": part(case, "model"), "optimizer": {}, "last_iter": 7, "last_step": 9}
    target = part(case, "target")
    return content | ({"target_model": target} if target else {})


def make_policy(case: str, network: Any = None, obs_shape: Any = None, **config: Any) -> Policy[Any]:
    """Return a policy with the network of a case, or with the one given, in double precision."""
    model = MODELS[case] | ({} if obs_shape is None else {"obs_shape": obs_shape})
    policy = create_policy({"type": case.partition("_")[0], "model": model, **config}, model=network)
    return policy.double()


def save(content: Any, folder: Path) -> Path:
    """Write a checkpoint and return its path."""
    path = folder / "ckpt_best.pth.tar"
    torch.save(content, path)
    return path
