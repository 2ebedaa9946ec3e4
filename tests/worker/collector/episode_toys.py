"""Envs, policies and collectors of whole episodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import Pausable
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import EpisodeSerialCollector
from tests.toys.envs import CountingEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
LENGTHS = [(1,), (9, 2), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2
Lengths = Sequence[Sequence[int]]
each_mode = pytest.mark.parametrize("mode", MODES)


def make_env(number: int, lengths: Sequence[int], can_pause: bool) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = CountingEnv(number, lengths)
    return Pausable(env) if can_pause else env


def envs(
    lengths: Lengths = LENGTHS,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    can_pause: bool = True,
    vector_class: Any = SyncVectorEnv,
) -> VectorEnv:
    makers = [functools.partial(make_env, i, of_env, can_pause) for i, of_env in enumerate(lengths)]
    made: VectorEnv = vector_class(makers, autoreset_mode=mode)
    return made


class PlacePolicy:
    """Its action is the sum of the observation modulo 4; it remembers how it was called."""

    def __init__(self, n_episode: int | None = None, unroll_len: int = 1) -> None:
        self.attributes = {"n_episode": n_episode, "unroll_len": unroll_len}
        self.kwargs: list[dict[str, Any]] = []
        self.given: list[Any] = []

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.kwargs.append(kwargs)
        return {"action": torch.as_tensor(obs).sum(1).long() % 4}

    def process_transition(self, obs: Any, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        named = {name: getattr(timestep, name) for name in ("reward", "next_obs", "terminated", "truncated")}
        return {"obs": obs, "action": output["action"], **named}

    def get_train_sample(self, data: Any) -> Any:
        self.given.append(data)
        return data | {"return": np.full_like(data["reward"], data["reward"].sum())}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        pass

    @property
    def mode(self) -> CollectMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("a collector must not touch this")

        same = (self.process_transition, self.get_train_sample, self.reset, self.attributes.__getitem__)
        return CollectMode(self.forward, *same, nothing, nothing, nothing)


def collector_of(env: VectorEnv, policy: PlacePolicy | None = None, **cfg: Any) -> EpisodeSerialCollector:
    return EpisodeSerialCollector(cfg, env=env, policy=(policy or PlacePolicy()).mode)


def collect(collector: EpisodeSerialCollector, *args: Any, **kwargs: Any) -> Any:
    return collector.collect(*args, **kwargs)
