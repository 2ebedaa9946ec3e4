"""RLPD: its targets by hand, its network, and the halves of its minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import nn
from torch.testing import assert_close

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.policy import RLPDPolicy
from tests.algorithms.table import random_episodes
from tests.policy.test_redq import ACTION, LOG_PROB, TinyEnsemble, without_noise

MakeTrainer = Callable[..., Trainer]


@pytest.mark.parametrize(("with_q_entropy", "bonus"), [(True, 0.25 * LOG_PROB), (False, 0.0)])
@pytest.mark.parametrize(("members", "smallest"), [([1, 2], 4.0), ([2, 0], 2.0), ([2], 8.0)])
def test_target_is_the_smallest_value_of_the_chosen_critics(
    members: list[int], smallest: float, with_q_entropy: bool, bonus: float
) -> None:
    model = {"action_low": [-1.0], "action_high": [1.0], "ensemble_num": 3}
    learn = {"alpha": 0.25, "target_critics": len(members), "with_q_entropy": with_q_entropy}
    config = {"discount_factor": 0.5, "model": model, "learn": learn}
    policy = RLPDPolicy(config, model=TinyEnsemble([1.0, 2.0, 6.0]))
    policy.target_model.load_state_dict(TinyEnsemble([2.0, 4.0, 8.0]).state_dict())
    batch = without_noise(policy, target_critics=torch.tensor([members, members]))
    expected = torch.tensor([1 + 0.5 * (smallest * ACTION - bonus), -1.0])
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], expected)


def test_only_the_critics_have_layer_normalisation() -> None:
    policy: Any = RLPDPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
    assert policy.config.model.ensemble_num == 10
    assert (policy.config.learn.target_critics, policy.config.learn.update_per_collect) == (2, 20)
    assert not [one for one in policy.model.actor.modules() if isinstance(one, nn.LayerNorm)]
    plain: Any = RLPDPolicy({"model": {"obs_shape": 3, "action_shape": 1, "critic_layer_norm": False}})
    sizes = [sum(one.numel() for one in made.model.critic.parameters()) for made in (policy, plain)]
    assert sizes[0] - sizes[1] == 10 * 2 * 2 * 256  # a scale and a shift of each unit of two layers of ten critics
    assert float(policy.alpha) == pytest.approx(math.exp(0.0))


def test_half_of_each_minibatch_is_from_the_data(make_trainer: MakeTrainer) -> None:
    shares: list[float] = []

    class Noting(RLPDPolicy):
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            shares.append(float(batch["is_expert"].float().mean()))
            return super()._forward_learn(batch)

    config = {
        "random_collect_size": 8,
        "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
        "learn": {"batch_size": 6, "update_per_collect": 3},
        "collect": {"n_sample": 8},
    }
    data = {"num_envs": 2, "max_env_step": 24, "demonstrations": random_episodes("Pendulum-v1")}
    make_trainer(limit_val_batches=0).fit(Noting(config), ReplayDataModule("Pendulum-v1", **data))
    assert shares == [0.5] * 6


def test_it_needs_data_and_an_env(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="demonstrations must be a data set, because RLPDPolicy learns from"):
        make_trainer().fit(RLPDPolicy(), ReplayDataModule("Pendulum-v1", num_envs=2))
    with pytest.raises(ValueError, match="policy must be one that learns from a data set alone, got 'RLPDPolicy'"):
        make_trainer().fit(RLPDPolicy(), OfflineDataModule(random_episodes("Pendulum-v1")))
