"""Wrappers that give an env the observations, actions and rewards of DI-engine's env."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.di_engine.env_wrappers import (
    AntContactForces,
    BinnedActions,
    ChannelsFirst,
    DelayedReward,
    OneHotObservation,
    UnitActions,
)


class Fixed(gym.Env[Any, Any]):
    """Returns fixed observations, keeps its actions, and pays 1, 2, 3 and so on; it ends after five steps."""

    def __init__(self, observation_space: Any, obs: Any, action_space: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or gym.spaces.Discrete(2)
        self.obs = obs
        self.actions: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.actions = []
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.obs, float(len(self.actions)), len(self.actions) == 5, False, {}


def with_actions(low: list[float], high: list[float]) -> Fixed:
    box = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    return Fixed(gym.spaces.Discrete(1), 0, box)


@pytest.mark.parametrize(
    ("states", "sizes", "shift", "state", "hot"),
    [
        (4, None, 0, 2, [0, 0, 1, 0]),
        (4, None, -1, 2, [0, 1, 0, 0]),
        (4, None, -1, 0, [0, 0, 0, 1]),  # the first state is moved to the end
        (6, (3, 2), 0, 5, [0, 0, 1, 0, 1]),
    ],
)
def test_a_state_is_one_hot(states: int, sizes: Any, shift: int, state: int, hot: list[int]) -> None:
    env = OneHotObservation(Fixed(gym.spaces.Discrete(states), state), sizes, shift)
    obs, _ = env.reset()
    assert obs.tolist() == hot
    assert env.observation_space.contains(obs)


def test_taxi_is_one_hot_in_position_passenger_and_destination() -> None:
    # state = ((row * 5 + column) * 5 + passenger) * 4 + destination; parts of 25, 5 and 4
    state = ((3 * 5 + 1) * 5 + 4) * 4 + 2
    obs, _ = OneHotObservation(Fixed(gym.spaces.Discrete(500), state), (25, 5, 4)).reset()
    assert np.flatnonzero(obs).tolist() == [3 * 5 + 1, 25 + 4, 30 + 2]
    assert len(obs) == 34


def test_sizes_must_fit_the_number_of_states() -> None:
    with pytest.raises(ValueError, match=r"sizes must be of product 7, got \(3, 2\)"):
        OneHotObservation(Fixed(gym.spaces.Discrete(7), 0), (3, 2))


def test_channels_come_first_and_stay_bytes() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    env = ChannelsFirst(Fixed(gym.spaces.Box(0, 255, (2, 2, 3), np.uint8), image))
    obs, _ = env.reset()
    assert obs.tolist() == [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]
    assert env.observation_space == gym.spaces.Box(0, 255, (3, 2, 2), np.uint8)


def test_an_ant_has_zeros_for_the_forces_on_the_world() -> None:
    env = AntContactForces(Fixed(gym.spaces.Box(-np.inf, np.inf, (105,), np.float64), np.arange(1.0, 106.0)))
    obs, _ = env.reset()
    assert obs.shape == env.observation_space.shape == (111,)
    assert obs[:27].tolist() == list(range(1, 28))
    assert obs[27:33].tolist() == [0] * 6
    assert obs[33:].tolist() == list(range(28, 106))


def test_unit_actions_reach_the_env_unscaled() -> None:
    raw = with_actions([-2.0], [2.0])
    env = UnitActions(raw)
    env.reset()
    env.step(np.array([0.5], np.float32))
    assert env.action_space == gym.spaces.Box(-1, 1, (1,), np.float32)
    assert raw.actions[0].tolist() == [0.5]


@pytest.mark.parametrize(("bin_", "value"), [(0, -2.0), (5, 0.0), (10, 2.0), (7, 0.8)])
def test_a_bin_is_a_value_between_the_bounds(bin_: int, value: float) -> None:
    raw = with_actions([-2.0], [2.0])
    env = BinnedActions(raw, 11)
    env.reset()
    env.step(np.int64(bin_))
    assert env.action_space == gym.spaces.Discrete(11)
    assert raw.actions[0].tolist() == pytest.approx([value])


def test_each_dimension_has_its_bin() -> None:
    raw = with_actions([-1.0, 0.0], [1.0, 10.0])
    env = BinnedActions(raw, 3)
    env.reset()
    env.step(np.array([2, 1]))
    assert env.action_space == gym.spaces.MultiDiscrete([3, 3])
    assert raw.actions[0].tolist() == [1.0, 5.0]


def test_a_delayed_reward_is_a_sum_and_the_end_pays_the_rest() -> None:
    env = DelayedReward(Fixed(gym.spaces.Discrete(1), 0), 2)
    for _ in range(2):  # rewards 1 to 5: sums of two, and the last one alone
        env.reset()
        assert [env.step(0)[1] for _ in range(5)] == [0, 3, 0, 7, 5]


def test_a_reset_drops_a_delayed_reward() -> None:
    env = DelayedReward(Fixed(gym.spaces.Discrete(1), 0), 2)
    env.reset()
    env.step(0)
    env.reset()
    assert [env.step(0)[1] for _ in range(2)] == [0, 3]


@pytest.mark.parametrize(
    ("wrapper", "name"), [(BinnedActions, "bins must be >= 2"), (DelayedReward, "steps must be >")]
)
def test_numbers_out_of_range_are_refused(wrapper: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        wrapper(with_actions([0.0], [1.0]), 0)
