"""Envs with tuples over agents as envs of a team: spaces, rewards, ends, states, and the packages that have them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.envs import env_state, load_env_state, make_vector_env
from lightning_ding.envs.named import find_env
from lightning_ding.envs.teams import TupleTeam


class Pair(gym.Env[Any, Any]):
    """Two agents that see 2 and 1 numbers; an agent gets its action as reward; an episode has three steps."""

    observation_space = spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)])
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
    metadata: Any = {"render_modes": []}  # noqa: RUF012

    def __init__(self, truncates: bool = False) -> None:
        self.truncates, self.steps = truncates, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {"lives": 1}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ends = self.steps == 3
        return self._seen(), list(map(float, action)), ends and not self.truncates, ends and self.truncates, {}

    def _seen(self) -> Any:
        return np.full(2, self.np_random.uniform(), np.float32), self.steps % 2


def test_agents_and_rewards_of_the_tuples() -> None:
    env = TupleTeam(Pair)
    obs, info = env.reset(seed=0)
    assert obs["agent_state"][1].tolist() == [1, 0]  # a one-hot vector
    assert (obs["agent_reward"].tolist(), info) == ([0, 0], {"lives": 1})
    assert env.action_space == spaces.MultiDiscrete([3, 2])
    obs, reward, *_ = env.step(np.array([2, 1]))
    assert (reward, obs["agent_reward"].tolist(), obs["agent_state"][1].tolist()) == (3.0, [2, 1], [0, 1])
    assert "alive" not in obs


@pytest.mark.parametrize("truncates", [False, True])
def test_ends_are_those_of_the_env_and_the_info_has_returns(truncates: bool) -> None:
    env = TupleTeam(Pair, team_reward="mean", truncates=truncates)
    env.reset(seed=0)
    *_, (_, reward, terminated, truncated, info) = [env.step(np.array([2, 1])) for _ in range(3)]
    assert (reward, terminated, truncated) == (1.5, not truncates, truncates)
    assert info == {"return_0": 6.0, "return_1": 3.0}


def test_episode_ends_when_each_agent_is_at_its_end_by_either_flag() -> None:
    class Uneven(Pair):
        def step(self, action: Any) -> Any:
            obs, reward, ends, *_ = super().step(action)
            return obs, reward, [ends, False], [False, ends], {}

    env = TupleTeam(Uneven)
    env.reset(seed=0)
    assert [env.step(np.array([2, 1]))[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


def test_env_of_one_agent_is_refused() -> None:
    with pytest.raises(TypeError, match="env must have a Tuple of observations and one of actions"):
        TupleTeam("CartPole-v1")


def test_packages_name_the_nearest_id_and_what_to_install() -> None:
    if not _has("lbforaging"):
        with pytest.raises(ImportError, match="needs the package 'lbforaging': pip install lbforaging"):
            find_env("lbforaging:Foraging-8x8-2p-2f-coop-v3")
        pytest.skip("lbforaging is not installed")
    with pytest.raises(ValueError, match=r"did you mean 'lbforaging:Foraging-8x8-2p-2f-coop-v3'\?"):
        find_env("lbforaging:Foraging-8x8-2p-2f-coop-v2")


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", ["lbforaging:Foraging-5x5-2p-1f-coop-v3", "rware:rware-tiny-2ag-v2"])
def test_saved_state_of_a_package_continues_to_the_last_bit(env_id: str) -> None:
    pytest.importorskip(env_id.partition(":")[0])
    env, other = (make_vector_env(env_id, 2, seed=seed) for seed in (1, 2))

    def rollout(played: Any, steps: int) -> list[Any]:
        played.action_space.seed(0)
        return [played.step(played.action_space.sample()) for _ in range(steps)]

    rollout(env, 20)
    state = env_state(env)
    expected = rollout(env, 60)
    load_env_state(other, state)
    for now, then in zip(rollout(other, 60), expected, strict=True):
        assert all(np.array_equal(now[0][name], then[0][name]) for name in then[0])
        assert all(np.array_equal(a, b) for a, b in zip(now[1:4], then[1:4], strict=True))


@pytest.mark.filterwarnings("ignore")
def test_end_of_the_time_is_a_truncation() -> None:
    pytest.importorskip("lbforaging")
    env = find_env("lbforaging:Foraging-8x8-2p-2f-coop-v3")(max_episode_steps=5)  # type: ignore[operator]
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.int64))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
