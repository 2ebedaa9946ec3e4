"""Losses, gradients and rewards of the reward models equal DI-engine's; ``make_ding_rewards`` computed those.

A comment says where DI-engine means something else.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.reward_model import (
    GAILConfig,
    GAILRewardModel,
    ICMConfig,
    ICMRewardModel,
    RNDConfig,
    RNDRewardModel,
)
from tests.di_engine.make_ding_rewards import CLAMP, FEATURES, LARGEST, REVERSE, WEIGHT, Curiosity, TwoNetworks
from tests.di_engine.stored import parts_of
from tests.di_engine.tiny_networks import ACTIONS, DIMENSIONS, OBS

part = parts_of("ding_rewards.safetensors")
Values = dict[str, Tensor]
ADDED: dict[str, Any] = {"extrinsic_reward_norm": True, "extrinsic_reward_norm_max": LARGEST}
SCALES: dict[str, Any] = {  # DI-engine does not weigh an intrinsic reward that is the only one
    "add": {"intrinsic_reward_norm": "minmax", "intrinsic_reward_weight": WEIGHT, **ADDED},
    "assign": {"intrinsic_reward_norm": "minmax"},
}


def check(ours: Any, theirs: Tensor) -> None:
    assert_close(ours.detach(), theirs, rtol=1e-5, atol=1e-9, check_dtype=False)


def check_gradients(network: nn.Module, theirs: Values, factor: float = 1.0) -> None:
    """Compare the gradients of all parameters that are trained."""
    trained = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
    assert trained
    for name, gradient in trained.items():
        check(gradient, factor * theirs[f"gradient.{name}"])


def test_loss_gradients_and_reward_of_gail_equal_ding() -> None:
    given, theirs, weights = part("gail", "in"), part("gail", "out"), part("gail", "model")
    section = {"obs_shape": OBS, "action_shape": DIMENSIONS, "action_space": "continuous"}
    model = GAILRewardModel(GAILConfig(data_path="unused"), section, 0.9).double()
    layers = nn.ModuleDict({"l1": nn.Linear(OBS + DIMENSIONS, 4), "l2": nn.Linear(4, 1)}).double()
    # DI-engine's output is the probability of the policy, and ours that of the expert
    layers.load_state_dict({name: -one if name.startswith("l2") else one for name, one in weights.items()})
    model.discriminator = nn.Sequential(layers["l1"], nn.Tanh(), layers["l2"])  # type: ignore[assignment]
    model.encode_action = lambda action: action  # type: ignore[assignment] # in double precision
    loss, _ = model.loss(given)
    check(loss, theirs["loss"])
    loss.backward()
    for name, parameter in layers.named_parameters():
        assert parameter.grad is not None
        check(-parameter.grad if name.startswith("l2") else parameter.grad, theirs[f"gradient.{name}"])
    check(model.reward(model.score(given), torch.zeros(len(given["obs"]))), theirs["reward"])


@pytest.mark.parametrize("kind", ["add", "assign"])
def test_loss_gradients_and_reward_of_rnd_equal_ding(kind: str) -> None:
    given, theirs = part("rnd", "in"), part("rnd", "out")
    networks = TwoNetworks().double()
    networks.load_state_dict(part("rnd", "model"))
    config = RNDConfig(
        **SCALES[kind],
        intrinsic_reward_type=kind,  # type: ignore[arg-type]
        obs_norm_clamp_min=-CLAMP,
        obs_norm_clamp_max=CLAMP,
    )
    model: Any = RNDRewardModel(config, {"obs_shape": OBS, "action_shape": ACTIONS}, 0.9).double()
    model.target, model.predictor = networks.target, networks.predictor
    model.obs0.mean.copy_(given["mean"])
    model.obs0.m2.copy_(given["std"].double().square())
    model.obs0.count.fill_(1)
    loss, _ = model.loss({"next_obs": given["obs"]})
    check(loss, theirs["loss"])
    loss.backward()
    check_gradients(networks, theirs)
    check(model.reward(model.score({"next_obs": given["obs"]}), given["reward"]), theirs[kind])


@pytest.mark.parametrize("kind", ["add", "assign"])
def test_loss_gradients_and_reward_of_icm_equal_ding(kind: str) -> None:
    """DI-engine takes the mean of the forward error over the features, and here half their sum is taken."""
    given, theirs, factor = part("icm", "in"), part("icm", "out"), FEATURES / 2
    networks = Curiosity().double()
    networks.load_state_dict(part("icm", "model"))
    config = ICMConfig(
        **SCALES[kind],
        intrinsic_reward_type=kind,  # type: ignore[arg-type]
        obs_norm=False,
        reverse_scale=REVERSE * factor,
    )
    model: Any = ICMRewardModel(config, {"obs_shape": OBS, "action_shape": ACTIONS}, 0.9)
    for name, network in networks.named_children():
        setattr(model, name, network)
    loss, _ = model.loss(given)
    check(loss, factor * theirs["loss"])
    loss.backward()
    networks.encoder.zero_grad()  # the forward error trains both features here, and only the first in DI-engine
    check_gradients(networks, theirs, factor)
    check(model.reward(model.score(given), given["reward"]), theirs[kind])
