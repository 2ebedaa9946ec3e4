"""Epsilon falls in a share of the run's budget, or in env steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import C51Policy, DDPGPolicy, DQNPolicy, QRDQNPolicy, RainbowPolicy
from tests.toys.envs import CountingEnv

HYBRID = {"model": {"obs_shape": 4, "action_shape": {"action_type_shape": 3, "action_args_shape": 1}}}
KINDS = [(DQNPolicy, {}), (C51Policy, {}), (QRDQNPolicy, {}), (DDPGPolicy, HYBRID)]


def epsilons(policy: Any, *env_steps: int) -> list[float]:
    return [policy.command_mode.get_setting_collect({"envstep": step})["eps"] for step in env_steps]


@pytest.mark.parametrize(("kind", "config"), KINDS)
@pytest.mark.parametrize(("budget", "decay"), [(40_000, 4000), (1_000_000, 100_000), (None, 10_000)])
def test_epsilon_falls_in_a_tenth_of_the_budget_or_in_10000_env_steps_without_one(
    kind: Any, config: Any, budget: int | None, decay: int
) -> None:
    policy = kind(config)
    policy.progress.budget = budget

    found = epsilons(policy, 0, decay // 2, decay - decay // 20, decay, 10 * decay)

    assert found == pytest.approx([1.0, 0.525, 0.0975, 0.05, 0.05])


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        ({"decay": 2000}, [1.0, 0.7625, 0.525]),
        ({"decay": 0.5, "unit": "budget"}, [1.0, 0.905, 0.81]),
        ({"type": "exp"}, [1.0, 0.05 + 0.95 / 2.718281828**0.5, 0.05 + 0.95 / 2.718281828]),
    ],
)
def test_epsilon_follows_the_decay_that_the_config_gives(eps: Any, expected: list[float]) -> None:
    policy = DQNPolicy({"other": {"eps": eps}})
    policy.progress.budget = 10_000

    assert epsilons(policy, 0, 500, 1000) == pytest.approx(expected, abs=1e-2)


def test_rainbow_keeps_its_epsilon_whatever_the_budget() -> None:
    policy = RainbowPolicy()
    policy.progress.budget = 100

    assert epsilons(policy, 0, 50, 1000) == [0.05, 0.05, 0.05]


def test_collecting_follows_the_budget_too() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 1, "action_shape": 2}, "other": {"eps": {"end": 0.0}}})
    policy.progress.budget, policy.progress.env_step = 1000, 100
    obs = torch.zeros(200, 1)

    assert torch.equal(policy.collect_mode.forward(obs)["action"], policy.eval_mode.forward(obs)["action"])


def test_a_run_tells_its_policy_the_budget(make_trainer: Any) -> None:
    policy = DQNPolicy({"random_collect_size": 64, "collect": {"n_sample": 16}})
    datamodule = ReplayDataModule(CountingEnv, num_envs=2, max_env_step=1000, n_evaluator_episode=1)

    make_trainer().fit(policy, datamodule)

    assert datamodule.collect_kwargs == {"eps": pytest.approx(0.05)}
