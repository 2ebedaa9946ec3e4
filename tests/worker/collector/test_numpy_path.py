"""Collected data stay numpy arrays until the buffer gathers a minibatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import EpisodeSerialCollector, NaiveReplayBuffer, SampleSerialCollector

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
