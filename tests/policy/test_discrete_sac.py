"""Discrete SAC against numbers worked out by hand, on networks that are tables.

gamma is 0.5 and the temperature 0.5. State 0 is where the agent was, state 1 where it went. In both, the policy is
(1/4, 3/4). The target critics' values of state 1 are (1, 5) and (3, 2), so its soft value is
1/4 (1 + 0.5 log 4) + 3/4 (2 - 0.5 log 3/4). The online critics' values of state 0 are (1, 2) and (3, 0).
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.policy import DiscreteSACPolicy, create_policy
from tests.policy import tables

LOG_3 = math.log(3)
NEXT_VALUE = 0.25 * (1 + 0.5 * math.log(4)) + 0.75 * (2 - 0.5 * math.log(0.75))
TARGETS = [1 + 0.5 * NEXT_VALUE, -1 + 0.5 * NEXT_VALUE]
NEGATIVE_ENTROPY = 0.25 * math.log(0.25) + 0.75 * math.log(0.75)


class Tables(nn.Module):
    """Looks up logits and the values of two critics by state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.ParameterList([torch.tensor([[0.0, LOG_3]] * 2)])
        self.critic = nn.ParameterList([torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 0.0], [0.0, 0.0]]])])

    def compute_actor(self, obs: Any) -> dict[str, Tensor]:
        return {"logit": self.actor[0][_state(obs)]}

    def compute_critic(self, obs: Any, action: Tensor | None = None) -> dict[str, Tensor]:
        q = self.critic[0][:, _state(obs)]
        return {"q_value": q if action is None else q[:, torch.arange(len(action)), action]}


def _state(obs: Any) -> Tensor:
    state: Tensor = obs["state"] if isinstance(obs, dict) else obs
    return state.long().reshape(-1)


def make_policy(**learn: Any) -> Any:
    learn = {"alpha": 0.5, **learn}
    model = {"obs_shape": 1, "action_shape": 2}
    policy: Any = DiscreteSACPolicy({"discount_factor": 0.5, "model": model, "learn": learn}, model=Tables())
    policy.target_model.critic[0].data = torch.tensor([[[0.0, 0.0], [1.0, 5.0]], [[0.0, 0.0], [3.0, 2.0]]])
    policy.seed(0)
    return policy


def make_batch(policy: Any, **changes: Any) -> dict[str, Any]:
    prepared: dict[str, Any] = policy.prepare(tables.make_batch(**{"action": torch.tensor([1, 0]), **changes}))
    return prepared


def test_targets_are_soft_values_of_the_smaller_critic() -> None:
    policy = make_policy()
    _, report = policy.critic_loss(make_batch(policy))
    assert_close(report["target_q_value"], torch.tensor(TARGETS))


def test_critic_loss_is_the_squared_error_of_the_action_taken_summed_over_critics() -> None:
    policy = make_policy()
    loss, report = policy.critic_loss(make_batch(policy))
    assert report["q_value"].tolist() == [[2.0, 1.0], [0.0, 3.0]]
    first = ((2 - TARGETS[0]) ** 2 + (1 - TARGETS[1]) ** 2) / 2
    second = ((0 - TARGETS[0]) ** 2 + (3 - TARGETS[1]) ** 2) / 2
    assert_close(loss.item(), first + second)


def test_soft_value_ends_at_a_terminal_state_but_not_at_a_time_limit() -> None:
    policy = make_policy()
    ends = {"terminated": torch.tensor([True, False]), "truncated": torch.tensor([False, True])}
    _, report = policy.critic_loss(make_batch(policy, **ends))
    assert_close(report["target_q_value"], torch.tensor([1.0, TARGETS[1]]))


def test_actor_loss_is_minus_the_soft_value_under_the_online_critics_and_trains_the_actor_only() -> None:
    # smaller values (1, 0): 1/4 (0.5 log 1/4 - 1) + 3/4 (0.5 log 3/4 - 0)
    policy = make_policy()
    loss, report = policy.actor_loss(make_batch(policy))
    assert_close(loss.item(), 0.5 * NEGATIVE_ENTROPY - 0.25)
    assert_close(report["log_prob"], torch.full((2,), NEGATIVE_ENTROPY))
    loss.backward()
    assert policy.model.critic[0].grad is None
    assert policy.model.actor[0].grad.abs().sum() > 0


@pytest.mark.parametrize(("given", "target"), [(None, 0.98 * math.log(2)), (0.3, 0.3)])
def test_temperature_falls_while_the_entropy_is_above_its_target(given: float | None, target: float) -> None:
    policy = make_policy(target_entropy=given)
    _, report = policy.actor_loss(make_batch(policy))
    policy.alpha_loss(report)[0].backward()
    assert_close(policy.temperature.grad.item(), -NEGATIVE_ENTROPY - target)  # of the logarithm


def test_illegal_actions_have_no_part_in_targets_and_losses() -> None:
    policy = make_policy()
    obs = {"state": torch.zeros(2), "action_mask": torch.tensor([[0, 1], [1, 0]])}
    next_obs = {"state": torch.ones(2), "action_mask": torch.tensor([[1, 0], [0, 1]])}
    batch = make_batch(policy, obs=obs, next_obs=next_obs)
    _, report = policy.critic_loss(batch)
    assert_close(report["target_q_value"], torch.tensor([1 + 0.5 * 1, -1 + 0.5 * 2]))  # no entropy is left
    loss, actor_report = policy.actor_loss(batch)
    assert_close(loss.item(), -(0.0 + 1.0) / 2)
    assert_close(actor_report["log_prob"], torch.zeros(2))
    loss.backward()
    assert policy.model.actor[0].grad.isfinite().all()


@pytest.mark.parametrize(("given", "targets"), [(None, [0.98 * math.log(2), 0.0]), (0.3, [0.3, 0.3])])
def test_target_entropy_counts_the_legal_actions_of_each_state(given: float | None, targets: list[float]) -> None:
    # Entropies: of (1/4, 3/4), and 0 where one action is legal. The gradient in the logarithm is their mean minus the
    # mean target; targets that count all actions would raise the temperature for ever where one is legal.
    policy = make_policy(target_entropy=given)
    obs = {"state": torch.zeros(2), "action_mask": torch.tensor([[1, 1], [1, 0]])}
    _, report = policy.actor_loss(make_batch(policy, obs=obs, next_obs=obs))
    policy.alpha_loss(report)[0].backward()
    assert_close(policy.temperature.grad.item(), -NEGATIVE_ENTROPY / 2 - sum(targets) / 2)


@pytest.mark.parametrize("alpha", [3.0, 1e3])
def test_losses_with_illegal_actions_are_finite_at_any_temperature(alpha: float) -> None:
    policy = make_policy(alpha=alpha)
    obs = {"state": torch.zeros(2), "action_mask": torch.tensor([[1, 1], [1, 0]])}
    next_obs = {"state": torch.ones(2), "action_mask": torch.tensor([[1, 0], [1, 1]])}
    batch = make_batch(policy, obs=obs, next_obs=next_obs)
    _, report = policy.critic_loss(batch)
    soft = 0.25 * 1 + 0.75 * 2 - alpha * NEGATIVE_ENTROPY
    assert_close(report["target_q_value"], torch.tensor([1 + 0.5 * 1, -1 + 0.5 * soft]))
    loss, _ = policy.actor_loss(batch)
    assert_close(loss.detach(), torch.tensor((alpha * NEGATIVE_ENTROPY - 0.25 - 1.0) / 2))
    loss.backward()
    assert policy.model.actor[0].grad.isfinite().all()


def test_actions_are_sampled_for_collecting_and_the_likeliest_for_evaluation() -> None:
    policy = make_policy()
    share = policy.collect_mode.forward(torch.zeros(4000, 1))["action"].float().mean().item()
    assert np.isclose(share, 0.75, atol=0.02)
    share = policy.collect_mode.forward(torch.zeros(4000, 1), eps=1.0)["action"].float().mean().item()
    assert np.isclose(share, 0.5, atol=0.024)
    assert policy.eval_mode.forward(torch.zeros(9, 1))["action"].tolist() == [1] * 9


def test_actions_are_legal_and_in_the_numbers_of_the_env() -> None:
    space = gym.spaces.Dict({"state": gym.spaces.Box(-1, 1, (2,)), "action_mask": gym.spaces.MultiBinary(3)})
    policy = create_policy({"type": "discrete_sac"}).build(space, gym.spaces.Discrete(3, start=5))
    obs = {"state": torch.randn(200, 2), "action_mask": torch.tensor([[1, 0, 1]] * 200)}
    for eps in (0.0, 1.0):
        assert set(policy.collect_mode.forward(obs, eps=eps)["action"].tolist()) == {5, 7}
    assert set(policy.eval_mode.forward(obs)["action"].tolist()) <= {5, 7}


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Box(-1, 1, (1,))])
def test_other_action_spaces_are_refused(space: gym.spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match="discrete_sac needs a Discrete action space"):
        create_policy({"type": "discrete_sac"}).build(gym.spaces.Box(-1, 1, (4,)), space)
