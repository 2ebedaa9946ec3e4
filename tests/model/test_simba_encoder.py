"""SimBa's layers as an encoder: the formula of the paper, and updates of policies that have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.model.simba_encoder import SimbaEncoder
from lightning_ding.policy import create_policy
from tests.conftest import MakeTrainer


def normal(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def linear(layer: Any, x: Tensor) -> Tensor:
    result: Tensor = (layer.weight[None] * x[:, None]).sum(-1) + layer.bias
    return result


def test_features_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    encoder: Any = SimbaEncoder((2, 3), [8, 8, 8])
    obs = torch.randn(5, 2, 3)
    x = linear(encoder.first, obs.flatten(1))
    for block in encoder.blocks:
        x = x + linear(block.narrow, F.relu(linear(block.widen, normal(x))))
    assert_close(encoder(obs), normal(x))
    assert [tuple(block.widen.weight.shape) for block in encoder.blocks] == [(32, 8)] * 2


def test_first_weights_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    encoder: Any = SimbaEncoder(4, [64, 64])
    assert_close(encoder.first.weight.T @ encoder.first.weight, torch.eye(4))  # orthogonal
    assert encoder.blocks[0].widen.weight.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.05)  # He et al. 2015
    assert not encoder.first.bias.any()


@pytest.mark.parametrize("widths", [[8, 16], []])
def test_widths_that_differ_are_refused(widths: list[int]) -> None:
    with pytest.raises(ValueError, match="encoder_hidden_size_list must be equal widths with the encoder simba, got"):
        create_policy({"type": "dqn", "model": {"encoder": "simba", "encoder_hidden_size_list": widths, **SIZES}})


SIZES = {"obs_shape": 4, "action_shape": 2}


@pytest.mark.parametrize(
    ("name", "more"),
    [("dqn", {}), ("discrete_sac", {}), ("ppo", {"action_space": "discrete"}), ("a2c", {"action_space": "discrete"})],
)
def test_an_update_moves_every_weight_of_the_encoder(
    name: str, more: dict[str, Any], make_trainer: MakeTrainer
) -> None:
    torch.manual_seed(0)
    options = {"model": {"encoder": "simba", "encoder_hidden_size_list": [8, 8], **SIZES, **more}}
    policy: Any = create_policy({"type": name, **options, "learn": {"batch_size": 16}, "collect": {"n_sample": 16}})
    before = {key: value.clone() for key, value in policy.model.state_dict().items()}
    make = RolloutDataModule if policy.on_policy else ReplayDataModule
    make_trainer(max_steps=-1).fit(policy, make("CartPole-v1", num_envs=2, max_env_step=640))
    moved = {key: not torch.equal(value, before[key]) for key, value in policy.model.state_dict().items()}
    encoders = {key: has_moved for key, has_moved in moved.items() if ".first." in key or ".blocks." in key}
    assert len(encoders) >= 8
    assert all(encoders.values())
