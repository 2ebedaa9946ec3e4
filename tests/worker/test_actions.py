"""Non-finite values from a policy reach neither an env nor a buffer."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from lightning_ding.policy import PPOPolicy, SACPolicy
from lightning_ding.worker import SampleSerialCollector
from lightning_ding.worker.actions import actions_of, check_finite
from lightning_ding.worker.players import Output, gather_actions


class Noting(gym.Env[Any, Any]):
    """An env of numbers that notes its actions."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.seen.append(action)
        return np.zeros(3, np.float32), 0.0, False, False, {}


@pytest.fixture
def envs() -> SyncVectorEnv:
    return SyncVectorEnv([Noting] * 4)


def seen(envs: SyncVectorEnv) -> list[int]:
    return [len(env.seen) for env in envs.envs]  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_action_that_is_not_finite_is_named_with_its_env(envs: SyncVectorEnv, value: float) -> None:
    action = torch.zeros(4, 2)
    action[2, 1] = value
    with pytest.raises(ValueError, match=rf"^the policy gave env 2 'action' that is not finite: \[ *0\. +{value}\]$"):
        actions_of({"action": action}, envs)


@pytest.mark.parametrize("name", ["log_prob", "value"])
def test_other_outputs_stored_in_a_transition_are_checked_too(envs: SyncVectorEnv, name: str) -> None:
    kept = torch.tensor([0.0, -math.inf, 0.0, math.nan])
    with pytest.raises(ValueError, match=f"the policy gave env 1 '{name}' that is not finite: -inf"):
        actions_of({"action": torch.zeros(4, 2), name: kept}, envs)


def test_logits_of_actions_that_are_not_legal_may_be_minus_infinity() -> None:
    logit = torch.zeros(4, 3)
    logit[1, 2] = -math.inf
    check_finite({"logit": logit})
    check_finite({"logit": {"action_type": logit}})
    logit[3, 0] = math.inf
    with pytest.raises(ValueError, match="the policy gave env 3 'logit' that is not finite"):
        check_finite({"logit": {"action_type": logit}})


def test_parts_of_an_action_are_looked_at() -> None:
    arguments = np.zeros((4, 2))
    arguments[1] = math.nan
    with pytest.raises(ValueError, match="env 1 'action'"):
        check_finite({"action": {"action_type": np.arange(4), "action_args": arguments}})


def test_whole_numbers_and_things_that_are_no_numbers_pass() -> None:
    check_finite({"action": torch.arange(4), "mask": np.ones(4, bool), "note": "text", "nothing": None})


@pytest.mark.parametrize("policy_class", [SACPolicy, PPOPolicy])
def test_a_network_that_is_broken_is_noticed_before_the_envs_step(envs: SyncVectorEnv, policy_class: Any) -> None:
    policy = policy_class().build(envs.single_observation_space, envs.single_action_space)
    collector = SampleSerialCollector(env=envs, policy=policy.collect_mode)
    collector.collect(4)
    assert seen(envs) == [1] * 4
    for weight in policy.model.parameters():
        weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="the policy gave env 0 'action' that is not finite"):
        collector.collect(4)
    assert seen(envs) == [1] * 4
    assert collector.envstep == 4


def test_a_player_that_gives_something_bad_is_named() -> None:
    class Env:
        action_space = spaces.Box(-1, 1, (3, 2, 1))

    rows = np.array([[True, False], [False, True], [True, True]])
    action = np.zeros((4, 1))
    action[1] = math.nan
    with pytest.raises(ValueError, match="the policy gave env 1, player 1 'action' that is not finite"):
        gather_actions(Env(), [Output(rows, {"action": action})])  # type: ignore[arg-type]


class OfIntegers(Noting):
    """An env of small integers."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.action_space = action_space


@pytest.mark.parametrize(
    "space", [spaces.MultiBinary(2), spaces.Box(-1, 1, (2,), np.int8), spaces.MultiDiscrete([2, 2], dtype=np.int32)]
)
def test_integers_have_the_type_of_their_space(space: spaces.Space[Any]) -> None:
    envs = SyncVectorEnv([lambda: OfIntegers(space)] * 2)
    action = actions_of({"action": torch.tensor([[0, 1], [1, 0]])}, envs)
    assert (action.dtype, action.tolist()) == (space.dtype, [[0, 1], [1, 0]])


def test_an_integer_that_leaves_its_box_is_named_with_its_env() -> None:
    envs = SyncVectorEnv([lambda: OfIntegers(spaces.Box(-1, 1, (2,), np.int8))] * 2)
    with pytest.raises(ValueError, match=r"the policy gave env 1 an action that is not in its space: \[0 2\]"):
        actions_of({"action": torch.tensor([[0, 1], [0, 2]])}, envs)
