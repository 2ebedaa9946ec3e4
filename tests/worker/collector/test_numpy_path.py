"""Collected data stay numpy arrays until the buffer gathers a minibatch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding import nested
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import EpisodeSerialCollector, NaiveReplayBuffer, SampleSerialCollector
from tests.worker.collector.episode_toys import PlacePolicy, collect, collector_of, each_mode, envs, make_env

CONVERSIONS = ("from_numpy", "as_tensor", "tensor", "cat", "stack")


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that turn arrays into tensors, or join tensors."""
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return function(*args, **kwargs)

        return call

    for name in CONVERSIONS:
        monkeypatch.setattr(torch, name, counting(name, getattr(torch, name)))
    monkeypatch.setattr("lightning_ding.worker.buffer.storage.from_numpy", torch.from_numpy)
    return counted


def constant_policy(num_envs: int) -> CollectMode:
    action = torch.zeros(num_envs, dtype=torch.int64)

    def process(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        names = ("reward", "next_obs", "terminated", "truncated")
        return {"obs": obs, "action": output["action"], **{name: getattr(timestep, name) for name in names}}

    def attribute(name: str) -> Any:
        raise NotImplementedError(name)

    def nothing(*_: Any) -> Any:
        return None

    def act(obs: Any, **_: Any) -> dict[str, Any]:
        return {"action": action}

    return CollectMode(act, process, lambda data: data, nothing, attribute, nothing, nothing, nothing)


@pytest.mark.parametrize(("kind", "amount"), [(SampleSerialCollector, 20), (EpisodeSerialCollector, 5)])
def test_collecting_and_pushing_makes_no_tensors(kind: Any, amount: int, conversions: Counter[str]) -> None:
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    collector, buffer = kind(env=env, policy=constant_policy(4)), NaiveReplayBuffer(seed=0)

    for _ in range(3):
        data = collector.collect(amount, random_collect=True)
        buffer.push(data)
        buffer.push(collector.collect(amount))

    assert conversions == Counter()
    assert all(isinstance(leaf, np.ndarray) for leaf in nested.leaves(data if isinstance(data, dict) else data[0]))


def test_gathering_a_minibatch_converts_each_column_once(conversions: Counter[str]) -> None:
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    buffer = NaiveReplayBuffer(seed=0)
    buffer.push(SampleSerialCollector(env=env, policy=constant_policy(4)).collect(20))

    batch = buffer.sample(8)

    assert conversions == Counter(from_numpy=len(nested.leaves(batch)))


def test_collect_joins_what_the_policy_makes_of_each_episode() -> None:
    policy = PlacePolicy()

    data = collect(collector_of(envs(), policy, get_train_sample=True), 3)

    assert [len(episode["reward"]) for episode in policy.handed_over] == [1, 9, 5]
    assert data["obs"].tolist() == [[i, 0, t] for i, length in enumerate((1, 9, 5)) for t in range(length)]
    assert data["return"].tolist() == [1.0] + [45.0] * 9 + [15.0] * 5


def test_collect_leaves_the_policy_out_of_it_if_asked_for_episodes() -> None:
    policy = PlacePolicy(unroll_len=4)

    episodes = collect(collector_of(envs(), policy), 3)

    assert policy.handed_over == []
    assert [len(episode["reward"]) for episode in episodes] == [1, 9, 5]


def test_collect_cuts_windows_for_a_policy_that_learns_from_sequences() -> None:
    collector = collector_of(envs(), PlacePolicy(unroll_len=4), get_train_sample=True)

    data = collect(collector, 3)

    # Episodes of 1, 9 and 5 steps; the last step of each fills its last window up.
    steps = [[0, 0, 0, 0], [0, 1, 2, 3], [4, 5, 6, 7], [8, 8, 8, 8], [0, 1, 2, 3], [4, 4, 4, 4]]
    assert data["obs"][:, :, 2].tolist() == steps
    assert data["env_id"].tolist() == [[0] * 4, [1] * 4, [1] * 4, [1] * 4, [2] * 4, [2] * 4]
    assert data["mask"].sum(1).tolist() == [1, 4, 4, 1, 4, 1]
    assert collector.sample == 15  # the padding does not count


class ShapingEnv(SyncVectorEnv):
    """Adds a hundred times the number of the env to the rewards; ``answer`` says what it returns instead."""

    answer: Any = "shaped"

    def reward_shaping(self, env_id: int, episode: dict[str, Any]) -> Any:
        shaped = episode | {"reward": episode["reward"] + 100 * env_id}
        return shaped if self.answer == "shaped" else self.answer


def shaping_envs(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> ShapingEnv:
    makers = [functools.partial(make_env, i, (i + 1,), True) for i in range(3)]
    return ShapingEnv(makers, autoreset_mode=mode)


@each_mode
def test_reward_shaping_gives_what_the_env_returns(mode: AutoresetMode) -> None:
    collector = collector_of(shaping_envs(mode), reward_shaping=True)

    episodes = collect(collector, 3)

    assert [episode["reward"].tolist() for episode in episodes] == [[1], [101, 102], [201, 202, 203]]
    assert sorted(collector.pop_episodes()[0]) == [1, 3, 6]  # the return is that of the env itself


def test_reward_shaping_is_off_by_default() -> None:
    assert collect(collector_of(shaping_envs()), 3)[2]["reward"].tolist() == [1, 2, 3]


def test_reward_shaping_comes_before_the_training_samples() -> None:
    data = collect(collector_of(shaping_envs(), reward_shaping=True, get_train_sample=True), 3)

    assert data["return"].tolist() == [1] + [203] * 2 + [606] * 3


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"env must have a method reward_shaping\(env_id, episode\), got SyncVectorEnv"):
        collector_of(envs(), reward_shaping=True)
    env = shaping_envs()
    env.answer = None
    with pytest.raises(TypeError, match=r"env\.reward_shaping must return the episode, got NoneType"):
        collect(collector_of(env, reward_shaping=True), 1)
