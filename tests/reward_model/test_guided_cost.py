"""Guided cost learning on numbers worked out by hand, against a slow oracle, and what it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.reward_model import GuidedCostConfig, GuidedCostRewardModel
from tests.reward_model.cases import fit, make as make_run
from tests.reward_model.test_preferences import SECTION


def model_of(**keys: Any) -> GuidedCostRewardModel:
    torch.manual_seed(0)
    return GuidedCostRewardModel(GuidedCostConfig(data_path="unused", **keys), SECTION, 0.9)


def batch_of(expert: list[int], own: list[int], prob: list[float]) -> dict[str, Any]:
    """Return a minibatch with one observation, in which the policy took its actions with these probabilities."""
    given: dict[str, Any] = {"expert_obs": torch.zeros(len(expert), 1), "expert_action": torch.tensor(expert)}
    given |= {"obs": torch.zeros(len(own), 1), "action": torch.tensor(own)}
    return given | {"log_prob": torch.tensor(prob).log()}


def test_loss_is_minus_the_logarithm_of_the_likelihood_of_the_expert() -> None:
    """A cost of 1 for action 1, else 0: exp(-c) / q is e^-1 / 0.5 and 1 / 0.25, and e^-1 of the expert."""
    model = model_of()
    model.cost = lambda obs, action: action.float()  # type: ignore[method-assign]
    batch = batch_of([1], [1, 0], [0.5, 0.25])
    loss, report = model.loss(batch)
    assert_close(loss, torch.tensor(1 + math.log((2 * math.exp(-1) + 4 + math.exp(-1)) / 3)), atol=1e-5, rtol=0)
    assert [float(report[name]) for name in ("expert_cost", "own_cost")] == [1.0, 0.5]
    assert model.score(batch).tolist() == [-1.0, 0.0]


def test_loss_and_gradient_are_those_of_the_sum_over_steps() -> None:
    """The oracle adds the weighted exponentials step by step, with 1e-7 added to each probability."""
    model = model_of(hidden_size_list=[6])
    batch = batch_of([1, 0, 1], [0, 0, 1], [0.3, 1e-12, 0.7])
    batch |= {"obs": torch.randn(3, 1), "expert_obs": torch.randn(3, 1)}
    loss, _ = model.loss(batch)
    loss.backward()
    ours = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    total, partition = torch.zeros(()), torch.zeros(())
    steps: list[tuple[Any, Tensor, float]] = []
    for place, action in enumerate(batch["expert_action"]):
        total = total + model.cost(batch["expert_obs"][place][None], action[None])[0] / 3
        steps.append((batch["expert_obs"][place], action, 1.0))
    steps += list(zip(batch["obs"], batch["action"], batch["log_prob"].exp().tolist(), strict=True))
    for obs, action, prob in steps:
        partition = partition + (-model.cost(obs[None], action[None])[0]).exp() / (prob + 1e-7) / len(steps)
    oracle = total + partition.log()
    assert_close(loss, oracle)
    oracle.backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-5)


def test_learned_reward_is_the_one_that_explains_the_expert() -> None:
    """The expert takes action 1 in 3 of 4 steps, and the policy either in half of them.

    The sampled weights of the actions are 2 / 0.5 + 1 = 5 for action 0 and 2 / 0.5 + 3 = 7 for action 1, so
    7 e^r1 / (5 e^r0 + 7 e^r1) = 3/4 for the rewards r: their difference is log(15 / 7).
    """
    model = model_of(hidden_size_list=[8])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    batch = batch_of([1, 1, 1, 0], [1, 0, 1, 0], [0.5] * 4)
    for _ in range(300):
        optimizer.zero_grad()
        model.loss(batch)[0].backward()
        optimizer.step()
    one, other = model.score(batch)[:2]
    assert_close(one - other, torch.tensor(math.log(15 / 7)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("times", [1, 2])
def test_probabilities_are_those_with_which_the_policy_acted(times: int, tmp_path: Path) -> None:
    policy, datamodule = make_run("ppo_guided_cost", tmp_path, reward_model={"clear_buffer_per_iters": times})
    seen = list[Any]()
    learn = policy.learner.rewards.train

    def noted() -> None:
        seen.append(dict(policy.learner.rewards._window))
        learn()

    policy.learner.rewards.train = noted
    fit(policy, datamodule, tmp_path, 1)
    assert seen[0]["log_prob"].exp().mean().item() == pytest.approx(0.5, abs=0.2)
    lengths = [len(window["log_prob"]) for window in seen]
    assert lengths[:2] == [lengths[0], lengths[0] * times]


def test_policy_without_probabilities_of_its_actions_is_refused(tmp_path: Path) -> None:
    policy, datamodule = make_run("dqn_gail", tmp_path, reward_model={"type": "guided_cost"})
    with pytest.raises(
        ValueError, match="type must be None with DQNPolicy, whose transitions have no log_prob, got 'gu"
    ):
        fit(policy, datamodule, tmp_path, 1)
