"""Losses of the value-based algorithms equal DI-engine's on random numbers; ``make_ding_losses`` computed those."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import DiscreteSACPolicy, DQfDPolicy

GAMMA = 0.875
Values = dict[str, Tensor]


@cache
def stored() -> Values:
    return load_file(Path(__file__).with_name("ding_losses.safetensors"))


def case(name: str) -> tuple[Values, Values]:
    """Return what a case was given, and what DI-engine made of it."""
    sides: tuple[Values, Values] = ({}, {})
    for key, value in stored().items():
        one, side, last = key.split("/")
        if one == name:
            sides[side == "out"][last] = value
    given, found = sides
    given["reward"] = sum(GAMMA**step * reward for step, reward in enumerate(given["reward"]))
    given["discount_t"] = given["value_gamma"] * (1 - given["done"])
    return given, found


def check(error: Tensor, given: Values, found: Values) -> None:
    """Compare the losses of the items, and the weighted mean."""
    assert_close(error, found["error"], rtol=1e-5, atol=1e-9)
    assert_close(rl.weighted_mean(error, given["weight"]), found["loss"], rtol=1e-5, atol=1e-9)


def test_munchausen_target_equals_ding() -> None:
    given, found = case("mdqn")
    discount_t = GAMMA * (1 - given["done"])
    reward = given["reward"] + 0.7 * rl.munchausen_bonus(given["target_q"], given["action"], 0.3, -1.0)
    target = rl.soft_q_target(reward, discount_t, given["next_q"], 0.3)
    check((rl.take_action_value(given["q"], given["action"]) - target).square(), given, found)


def test_target_of_soft_q_learning_equals_ding() -> None:
    given, found = case("sql")
    target = rl.soft_q_target(given["reward"], given["discount_t"], given["next_q"], 0.3)
    check((rl.take_action_value(given["q"], given["action"]) - target).square(), given, found)


@pytest.mark.parametrize(("name", "kappa"), [("iqn", 0.7), ("fqf", 1.0)])
def test_loss_at_given_levels_equals_ding(name: str, kappa: float) -> None:
    given, found = case(name)
    order = (1, 2, 0) if name == "iqn" else (0, 2, 1)  # to (B, A, N)
    q, next_q = given["q"].permute(order), given["next_q"].permute(order)
    tau = given["tau"].reshape(q.shape[2], -1).T if name == "iqn" else given["tau"]
    prediction = rl.take_action_distribution(q, given["action"])
    quantile_t = rl.take_action_distribution(next_q, given["next_action"])
    target = rl.quantile_target(given["reward"], given["discount_t"], quantile_t)
    check(rl.quantile_huber(prediction, target, tau, kappa) / kappa, given, found)


def test_loss_of_proposed_levels_equals_ding() -> None:
    given, found = case("fqf")
    ends = given["ends"].requires_grad_()
    values = [rl.take_action_distribution(given[name].transpose(1, 2), given["action"]) for name in ("q_ends", "q")]
    loss = rl.fraction_loss(ends, *values).mean()
    loss.backward()
    assert_close(loss.detach(), found["fraction_loss"], rtol=1e-5, atol=1e-9)
    assert_close(ends.grad, found["fraction_gradient"], rtol=1e-5, atol=1e-9)


class Tables(nn.Module):
    """An actor and two critics that look up the row of an observation."""

    def __init__(self, logit: Tensor, q: Tensor) -> None:
        super().__init__()
        self.actor, self.critic = nn.ParameterList([logit]), nn.ParameterList([q])

    def compute_actor(self, obs: Tensor) -> Values:
        return {"logit": self.actor[0][obs.long().squeeze(1)]}

    def compute_critic(self, obs: Tensor, action: Tensor | None = None) -> Values:
        q = self.critic[0][:, obs.long().squeeze(1)]
        return {"q_value": q if action is None else q[:, torch.arange(len(action)), action]}


def test_losses_and_gradients_of_discrete_sac_equal_ding() -> None:
    given, found = case("discrete_sac")
    learn = {"target_entropy": 0.6, "alpha": 0.2}
    config = {"discount_factor": GAMMA, "priority": True, "priority_IS_weight": True, "learn": learn}
    model = {"obs_shape": 1, "action_shape": 3}
    policy: Any = DiscreteSACPolicy({**config, "model": model}, model=Tables(given["logit"], given["q"])).double()
    policy.target_model.critic[0].data.copy_(given["target_q"])
    rows = torch.arange(len(given["reward"]), dtype=torch.float64)[:, None]
    batch = {"obs": rows, "next_obs": rows + len(rows), "IS": given["weight"], "terminated": given["done"] > 0}
    batch = policy.prepare(batch | {"action": given["action"], "reward": given["reward"]})
    critic_loss, _ = policy.critic_loss(batch)
    actor_loss, actor_report = policy.actor_loss(batch)
    alpha_loss, _ = policy.alpha_loss(actor_report)
    (critic_loss + actor_loss + alpha_loss).backward()
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}  # DI-engine's temperature is in single precision
    assert_close(actor_loss.detach(), found["policy_loss"], **close)
    assert_close((critic_loss + actor_loss + alpha_loss).detach(), found["total_loss"], **close)
    assert_close(policy.model.critic[0].grad, found["critic_gradient"], **close)
    assert_close(policy.model.actor[0].grad[None], found["actor_gradient"], **close)
    assert_close(policy.temperature.grad.reshape(1, 1), found["alpha_gradient"].double(), **close)


class Table(nn.Module):
    """Looks up the action values of an observation, which is the number of a row."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        return {"logit": self.values[obs.long().flatten()]}


def test_loss_of_dqfd_equals_ding() -> None:
    given, found = case("dqfd")
    size = len(given["q"])
    options = {"lambda1": 0.6, "lambda2": 1.5, "lambda3": 0.0, "margin_function": 0.8, "loss": "mse", "double_q": True}
    chosen = [
        nn.functional.one_hot(given[name], given["q"].shape[1]).double() for name in ("next_action", "next_action_1")
    ]
    online, target = [given["q"], *chosen], [given["q"], given["next_q"], given["next_q_1"]]
    policy: Any = DQfDPolicy({"discount_factor": GAMMA, "learn": options}, model=Table(torch.cat(online)))
    policy.target_model.values.data = torch.cat(target)
    row = torch.arange(size).unsqueeze(1)
    batch = {"obs": row, "next_obs": row + size, "next_obs_1": row + 2 * size, "action": given["action"]}
    batch |= {"reward": given["reward"], "reward_1": given["reward_1"], "is_expert": given["is_expert"].bool()}
    batch |= {"terminated": given["done"].bool(), "terminated_1": given["done_1"].bool()}
    loss, _ = policy.loss(policy.prepare({**batch, "discount": given["value_gamma"], "IS": given["weight"]}))
    assert_close(loss.detach(), found["loss"], rtol=1e-5, atol=1e-9)
