"""Envs, policies and collectors of single transitions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker import SampleSerialCollector
from tests.toys.envs import CountingEnv

Row = tuple[list[float], int, float, list[float], bool, bool]  # obs, action, reward, next_obs, terminated, truncated
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
LENGTHS = [(1,), (2, 4), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2; later envs repeat them
TRUNCATES = [(True, False), (False,), (False, True)]


class LoggedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps all transitions as the env itself saw them."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.log: list[Row] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.obs, info = super().reset(seed=seed, options=options)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.log.append((self.obs.tolist(), int(action), float(reward), obs.tolist(), terminated, truncated))
        self.obs = obs
        return obs, reward, terminated, truncated, info


def counting_envs(mode: AutoresetMode = AutoresetMode.SAME_STEP, num_envs: int = 3) -> VectorEnv:
    def make(number: int) -> gym.Env[Any, Any]:
        return LoggedEnv(CountingEnv(number, LENGTHS[number % 3], TRUNCATES[number % 3]))

    return SyncVectorEnv([functools.partial(make, i) for i in range(num_envs)], autoreset_mode=mode)


def logs(env: VectorEnv) -> list[list[Row]]:
    return [cast(LoggedEnv, one).log for one in cast(SyncVectorEnv, env).envs]


class PlacePolicy:
    """Its action is the sum of the observation modulo 4; it remembers how it was called."""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = {"n_sample": None, "n_episode": None, "unroll_len": 1, **attributes}
        self.kwargs: list[dict[str, Any]] = []
        self.resets: list[Sequence[int] | None] = []
        self.handed_over: list[Any] = []

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.kwargs.append(kwargs)
        return {"action": torch.as_tensor(obs).sum(1).long() % 4}

    def process_transition(self, obs: Any, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        named = {name: getattr(timestep, name) for name in ("reward", "next_obs", "terminated", "truncated")}
        return {"obs": obs, "action": output["action"], **named}

    def get_train_sample(self, data: Any) -> Any:
        self.handed_over.append(data)
        return data

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    @property
    def mode(self) -> CollectMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("a collector must not touch this")

        functions = (self.forward, self.process_transition, self.get_train_sample, self.reset, self.get_attribute)
        return CollectMode(*functions, nothing, nothing, nothing)


class Metronome(PlacePolicy):
    """Its action is how often it has acted in each of three envs since the env was reset."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = np.zeros(3, dtype=np.int64)

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        self.ticks += 1
        return {"action": torch.from_numpy(self.ticks - 1)}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.ticks[slice(None) if data_id is None else list(data_id)] = 0


def collector_of(env: VectorEnv, policy: PlacePolicy | None = None) -> SampleSerialCollector:
    return SampleSerialCollector(env=env, policy=(policy or PlacePolicy()).mode)


def collect(collector: SampleSerialCollector, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", collector.collect(*args, **kwargs))
