"""A2C's loss against numbers worked out by hand.

State 0 has the probabilities (1/4, 3/4) and the value 1, state 1 has (1/2, 1/2) and 3. Row 0 took action 1 in state 0
with an advantage of 2 and a return of 2, row 1 action 0 in state 1 with -1 and 1. The policy's loss is therefore
-(2 log 3/4 - log 1/2) / 2, the critic's (1^2 + 2^2) / 2 = 2.5.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lightning_ding.policy import A2CPolicy
from lightning_ding.policy.a2c import A2CLearnConfig
from lightning_ding.utils.schedules import ScheduledValues
from tests.policy.tables import ActorCriticTable

PROBABILITY = [[0.25, 0.75], [0.5, 0.5]]
POLICY_LOSS = -(2 * math.log(0.75) - math.log(0.5)) / 2
ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75) + math.log(0.5)) / 2
Config = dict[str, Any]


def make_batch() -> Any:
    return {
        "obs": torch.tensor([0.0, 1.0]),
        "action": torch.tensor([1, 0]),
        "value": torch.tensor([9.0, 9.0]),  # of the network that acted, which nothing depends on
        "advantage": torch.tensor([2.0, -1.0]),
        "return": torch.tensor([2.0, 1.0]),
    }


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ({"entropy_weight": 0.0}, POLICY_LOSS + 0.25 * 2.5),
        ({"entropy_weight": 0.0, "value_weight": 2.0}, POLICY_LOSS + 5.0),
        ({}, POLICY_LOSS + 0.25 * 2.5 - 0.01 * ENTROPY),
        ({"entropy_weight": 0.5}, POLICY_LOSS + 0.25 * 2.5 - 0.5 * ENTROPY),
    ],
)
def test_loss_is_the_sum_of_its_weighed_parts(learn: Config, expected: float) -> None:
    loss, report = A2CPolicy({"learn": learn}, model=ActorCriticTable(PROBABILITY, [1.0, 3.0])).loss(make_batch())
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    parts = {"total_loss": expected, "policy_loss": POLICY_LOSS, "value_loss": 2.5, "entropy_loss": ENTROPY}
    assert {name: value.item() for name, value in report.items()} == pytest.approx(parts, rel=1e-6)
    assert not any(value.requires_grad for value in report.values())


def test_no_gradient_flows_through_advantages_and_old_values() -> None:
    policy, batch = A2CPolicy(model=ActorCriticTable(PROBABILITY, [1.0, 3.0])), make_batch()
    batch["advantage"].requires_grad_()
    policy.loss(batch)[0].backward()
    assert batch["advantage"].grad is None


def test_rollout_is_passed_over_once() -> None:
    policy = A2CPolicy(
        {"learn": {"batch_size": 1, "learning_rate": 1e-3}}, model=ActorCriticTable(PROBABILITY, [1.0, 3.0])
    )
    flags = torch.tensor([False, True])
    ids = {"env_id": torch.zeros(2).long(), "episode_id": torch.zeros(2).long(), "log_prob": torch.zeros(2)}
    steps = {"obs": torch.tensor([0.0, 1.0]), "next_obs": torch.tensor([1.0, 0.0]), "action": torch.tensor([1, 0])}
    flags_of = {"terminated": flags, "truncated": ~flags & flags}
    policy._learn(steps | ids | flags_of | {"reward": torch.ones(2)})
    assert policy.progress.train_iter == 2
    assert policy.get_attribute("update_per_collect") == 128  # of n_sample 128 in minibatches of 1


MODEL = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}


def rates(learn: A2CLearnConfig, budget: int | None, *env_steps: int) -> list[float]:
    """Return the learning rates after so many env steps."""
    schedules, seen = ScheduledValues(learn), []
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=learn.learning_rate)
    for env_step in env_steps:
        schedules.apply(env_step, budget, [optimizer])
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_the_step_size_falls_to_zero_over_the_budget() -> None:
    assert rates(A2CLearnConfig(), 1000, 0, 500, 900) == pytest.approx([1e-3, 5e-4, 1e-4])


def test_the_step_size_stays_in_a_run_without_a_budget() -> None:
    assert rates(A2CLearnConfig(), None, 0, 10**6) == [1e-3, 1e-3]


def test_a_schedule_that_was_asked_for_needs_the_budget() -> None:
    learn = A2CPolicy({"model": MODEL, "learn": {"lr_scheduler": {"end": 0.1}}}).config.learn
    with pytest.raises(ValueError, match="needs a budget"):
        rates(learn, None, 0)


def test_a_scheduler_of_ones_own_replaces_the_default_schedule() -> None:
    schedules = ScheduledValues(A2CLearnConfig())
    schedules.give_way()
    assert not schedules.sets_learning_rate
    asked_for = ScheduledValues(A2CPolicy({"model": MODEL, "learn": {"lr_scheduler": {"end": 0.1}}}).config.learn)
    asked_for.give_way()
    assert asked_for.sets_learning_rate
