"""The defaults of A2C: a step size that falls with the budget."""

from __future__ import annotations

import pytest
import torch

from lightning_ding.policy import A2CPolicy
from lightning_ding.policy.a2c import A2CLearnConfig
from lightning_ding.utils.schedules import ScheduledValues

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
