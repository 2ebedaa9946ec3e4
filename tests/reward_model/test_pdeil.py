"""Imitation by probability densities against a slow oracle and DI-engine's rewards, and what it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from lightning_ding.policy import create_policy
from lightning_ding.reward_model import PDEILConfig, PDEILRewardModel
from lightning_ding.reward_model.pdeil import RIDGE, Normal
from tests.reward_model.cases import write_expert

EXPERT = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [-1.0, 1.0], [0.5, -1.0]])
OWN = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, 2.0], [3.0, 0.0]])
SEEN = torch.tensor([[0.5, 0.5], [1.0, -1.0], [0.0, 2.0]])


def make(action_space: str = "discrete", **keys: Any) -> Any:
    torch.manual_seed(0)
    section = {"obs_shape": 2, "action_shape": 3 if action_space == "discrete" else 1, "action_space": action_space}
    return PDEILRewardModel(PDEILConfig(data_path="unused", hidden_size_list=[8], **keys), section, 0.9)


def fit(density: Normal, rows: Tensor, correction: int = 0) -> MultivariateNormal:
    """Let a density be that of rows, and return the same one of torch."""
    mean, covariance = rows.double().mean(0), torch.cov(rows.double().T, correction=correction)
    density.fit(mean, covariance + torch.outer(mean, mean))
    return MultivariateNormal(mean, covariance + RIDGE * torch.eye(2))


def test_reward_is_the_quotient_of_densities_one_step_after_the_other() -> None:
    model = make(alpha=0.3)
    expert, own, action = fit(model.expert, EXPERT), fit(model.own, OWN), torch.tensor([2, 0, 1])
    expected = []
    for seen, chosen in zip(SEEN, action, strict=True):
        of_expert, of_policy = expert.log_prob(seen.double()).exp(), own.log_prob(seen.double()).exp()
        probability = model.clone(seen[None])[0].softmax(0)[chosen].double()
        expected.append(of_expert * probability / (0.3 * of_expert + 0.7 * of_policy))
    assert_close(
        model.score({"obs": SEEN, "action": action}).double(), torch.stack(expected).detach(), rtol=1e-4, atol=0
    )
    assert not model.uses_env_reward


def test_rewards_are_those_of_ding_with_its_model_of_the_experts_actions() -> None:
    """DI-engine 0.5.3's ``PdeilRewardModel`` computed them, with actions 0.5, -0.5, 0.25, 0.75 and -1 of the expert.

    Its density of actions is the joint normal density divided by that of observations; both have unbiased covariances.
    """
    model = make("continuous", alpha=0.3)
    fit(model.expert, EXPERT, correction=1), fit(model.own, OWN, correction=1)
    model.log_policy = lambda obs, action: torch.tensor([1.3892225542589123, -64.59808194243142, 1.86521844707303])
    found = model.score({"obs": SEEN, "action": torch.tensor([[0.0], [-0.5], [1.0]])})
    assert_close(found, torch.tensor([4.2997565269470215, 1.868770269567767e-28, 6.42790412902832]), rtol=1e-4, atol=0)


def test_density_of_the_policy_is_that_of_its_newest_observations() -> None:
    model, rows = make(recent=4), torch.cat([torch.full((3, 2), 9.0), OWN])
    model.add({"obs": rows[:5]})
    model.add({"obs": rows[5:]})
    theirs = fit(Normal(2), OWN)
    assert_close(model.own.log_prob(SEEN).double(), theirs.log_prob(SEEN.double()), rtol=1e-4, atol=1e-5)
    other = make(recent=4)
    other.load_rank_state(model.rank_state())
    other.add({"obs": rows[:0]})
    assert_close(other.own.state_dict(), model.own.state_dict())


@pytest.mark.parametrize(("space", "action"), [("discrete", [0, 2, 1]), ("continuous", [[0.5], [-1.0], [0.25]])])
def test_loss_is_minus_the_logarithm_of_the_probability_of_the_experts_actions(space: str, action: Any) -> None:
    model, given = make(space), torch.tensor(action)
    found = model.clone(SEEN).detach()
    if space == "discrete":
        expected = -sum(math.log(found[row].softmax(0)[k]) for row, k in enumerate(action)) / 3
    else:
        expected = sum(0.5 * (float(given[k] - found[k]) ** 2 + math.log(2 * math.pi)) for k in range(3)) / 3
    loss, report = model.loss({"expert_obs": SEEN, "expert_action": given})
    assert_close(loss.item(), expected, rtol=1e-5, atol=1e-6)
    assert report["reward_model_loss"] == loss


def test_steps_of_the_expert_get_more_than_those_of_another_policy() -> None:
    torch.manual_seed(0)
    model = make(alpha=0.5)
    expert = torch.randn(200, 2)
    fit(model.expert, expert)
    model.add({"obs": torch.randn(200, 2) + 3.0})
    batch = {"expert_obs": expert, "expert_action": (expert[:, 0] > 0).long()}
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        model.loss(batch)[0].backward()
        optimizer.step()
    right = model.score({"obs": expert, "action": batch["expert_action"]})
    wrong = model.score({"obs": expert, "action": 1 - batch["expert_action"]})
    away = model.score({"obs": expert + 6.0, "action": batch["expert_action"]})
    assert right.mean() > 1.5  # near 1 / alpha
    assert wrong.mean() < 0.5
    assert away.max() < 0.01


def test_density_of_the_expert_is_read_from_its_data_set(tmp_path: Path) -> None:
    path = write_expert(tmp_path, False)
    policy: Any = create_policy(
        {
            "type": "dqn",
            "model": {"obs_shape": 4, "action_shape": 2},
            "reward_model": {"type": "pdeil", "data_path": path},
        }
    )
    policy.learner.rewards.begin()
    assert_close(policy.reward_model.expert.mean, torch.from_numpy(np.load(path)["obs"].mean(0)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"reward_model": {"alpha": 1.5}}, r"reward_model.alpha must be in \[0, 1\], got 1.5"),
        ({"reward_model": {"recent": 1}}, "reward_model.recent must be >= 2, got 1"),
        ({"model": {"obs_shape": [4, 8, 8]}}, "model.obs_shape must be a number with reward_model.type 'pdeil', got"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], message: str) -> None:
    section = {"type": "pdeil", "data_path": "unused", **config.get("reward_model", {})}
    model = {"obs_shape": 4, "action_shape": 2, **config.get("model", {})}
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "dqn", "model": model, "reward_model": section})
