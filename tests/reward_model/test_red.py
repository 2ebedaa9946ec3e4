"""Random expert distillation on numbers worked out by hand, against a slow oracle, and what it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.policy import create_policy
from lightning_ding.reward_model import REDConfig, REDRewardModel
from tests.reward_model.cases import write_expert
from tests.reward_model.test_preferences import SECTION, rising, write_ranked


def test_reward_falls_with_the_mean_squared_error() -> None:
    """Features of 1 and 3 for targets of 0 and 1: the mean of 1 and 4 is 2.5."""
    model: Any = REDRewardModel(REDConfig(data_path="unused", sigma=2.0), SECTION, 0.9)
    del model.predictor, model.target
    model.predictor = lambda obs, action: torch.tensor([[1.0, 3.0], [0.0, 1.0]])
    model.target = lambda obs, action: torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    batch = {"obs": torch.zeros(2, 1), "action": torch.zeros(2)}
    assert_close(model.score(batch), torch.tensor([math.exp(-5), 1.0]))
    assert_close(model.loss(batch)[0], torch.tensor(1.25))
    assert not model.uses_env_reward


def test_loss_and_gradient_are_those_of_one_step_after_the_other() -> None:
    torch.manual_seed(0)
    model = REDRewardModel(REDConfig(data_path="unused", hidden_size_list=[4, 3]), SECTION, 0.9)
    obs, action = torch.randn(5, 1), torch.tensor([0, 1, 1, 0, 1])
    model.loss({"obs": obs, "action": action})[0].backward()
    ours = [one.grad.clone() for one in model.predictor.parameters() if one.grad is not None]
    model.zero_grad()

    def features(network: Any, place: int) -> Any:
        joined = torch.cat([obs[place], torch.eye(2)[action[place]]])
        for layer in network.layers.layers:
            joined = torch.tanh(layer.weight @ joined + layer.bias)
        return joined

    loss = torch.zeros(())
    for place in range(5):
        wrong = features(model.predictor, place) - features(model.target, place).detach()
        loss = loss + sum(one**2 for one in wrong) / 3 / 5
    loss.backward()
    for mine, parameter in zip(ours, model.predictor.parameters(), strict=True):
        assert_close(mine, parameter.grad)
    assert all(parameter.grad is None for parameter in model.target.parameters())


def policy_of(path: str, **section: Any) -> Any:
    torch.manual_seed(0)
    keys = {"type": "red", "data_path": path, "hidden_size_list": [32, 8], **section}
    policy = create_policy({"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}, "reward_model": keys})
    policy.seed(0)
    return policy


def test_trajectories_are_ranked_by_their_likeness_to_the_expert(tmp_path: Path) -> None:
    """The expert moves from 0 to 2 with action 0; others start further and further away from there."""
    file = write_ranked(tmp_path / "expert.npz", [rising(0.1, 20)], [1.0])
    policy = policy_of(file, update_per_collect=800, learning_rate=0.005, batch_size=32, sigma=5.0)
    policy.learner.rewards.train()
    returns = [
        float(
            policy.reward_model.score(
                {"obs": torch.from_numpy(rising(0.1, 20) - shift).float(), "action": torch.zeros(21)}
            ).mean()
        )
        for shift in (0.0, 0.7, 1.5, 3.0)
    ]
    assert returns == sorted(returns, reverse=True)
    assert returns[0] > 0.95
    other = {"obs": torch.from_numpy(rising(0.1, 20)).float(), "action": torch.ones(21)}
    assert float(policy.reward_model.score(other).mean()) < returns[0]


def test_it_learns_from_each_step_of_the_expert_once(tmp_path: Path) -> None:
    policy = policy_of(write_expert(tmp_path, False), batch_size=8, collect_count=24)
    calls, loss = list[Any](), policy.reward_model.loss
    policy.reward_model.loss = lambda batch: calls.append(batch) or loss(batch)  # type: ignore[func-returns-value]
    for _ in range(2):
        policy.learner.rewards.train()
    seen = torch.cat([batch["obs"] for batch in calls])
    assert seen.shape == (24, 4) == seen.unique(dim=0).shape


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"reward_model\.sigma must be > 0, got 0\.0"):
        REDConfig(sigma=0.0)
    with pytest.raises(ValueError, match="clear_buffer_per_iters must be 1 with red"):
        REDConfig(clear_buffer_per_iters=3)
