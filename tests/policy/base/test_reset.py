"""Resets of networks during a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ding.policy import DQNPolicy, SACPolicy, create_policy
from lightning_ding.policy.base.reset import KEPT, reset_networks
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import ALGORITHMS, TEAMS, make_datamodule, make_policy

SMALL: dict[str, Any] = {
    "model": {"obs_shape": 3, "action_shape": 1, "actor_head_hidden_size": 4, "critic_head_hidden_size": 4},
    "learn": {"batch_size": 4},
}


def replay_algorithms() -> list[str]:
    return [name for name in (*ALGORITHMS, *TEAMS) if issubclass(POLICY_REGISTRY.get(name), ReplayPolicy)]


def soft(**learn: Any) -> SACPolicy:
    torch.manual_seed(0)
    policy = SACPolicy({**SMALL, "learn": {**SMALL["learn"], **learn}})
    policy.seed(0)
    return policy


def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    obs, next_obs = torch.randn(2, 4, 3, generator=generator)
    ends = torch.zeros(4, dtype=torch.bool)
    return {"obs": obs, "next_obs": next_obs, "action": obs[:, :1], "reward": obs[:, 1], "terminated": ends}


def learn(policy: Any, updates: int) -> list[list[float]]:
    """Return the sums of the critics' and the actor's weights and the temperature after each update."""
    seen = []
    for _ in range(updates):
        policy.learn_mode.forward(batch())
        sums = [float(sum(one.sum() for one in part.parameters())) for part in (policy.model.critic, policy.model.actor)]
        seen.append([*sums, float(policy.temperature)])
    return seen


@pytest.mark.parametrize("name", replay_algorithms())
def test_a_reset_is_a_new_policy_of_the_same_seed(name: str) -> None:
    changes = {"learn": {"reset_freq": 2}}
    policy = make_policy(name, **changes)
    datamodule = make_datamodule(name)
    envs = datamodule.make_envs() if hasattr(datamodule, "make_envs") else None
    del envs
