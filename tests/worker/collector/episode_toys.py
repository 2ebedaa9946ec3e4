"""Envs, policies and collectors of whole episodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import Pausable
from lightning_ding.worker import EpisodeSerialCollector
from tests.toys.envs import CountingEnv
from tests.worker.collector import sampling_toys

LENGTHS = [(1,), (9, 2), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2
Lengths = Sequence[Sequence[int]]
each_mode = pytest.mark.parametrize("mode", sampling_toys.MODES)


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


class PlacePolicy(sampling_toys.PlacePolicy):
    def get_train_sample(self, data: Any) -> Any:
        return super().get_train_sample(data) | {"return": np.full_like(data["reward"], data["reward"].sum())}


def collector_of(env: VectorEnv, policy: sampling_toys.PlacePolicy | None = None, **cfg: Any) -> EpisodeSerialCollector:
    return EpisodeSerialCollector(cfg, env=env, policy=(policy or PlacePolicy()).mode)


def collect(collector: EpisodeSerialCollector, *args: Any, **kwargs: Any) -> Any:
    return collector.collect(*args, **kwargs)
