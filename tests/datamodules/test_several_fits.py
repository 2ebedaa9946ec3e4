"""Memory of several fits in one process, as in a notebook or a sweep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule, resume
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]


class Wide(gym.Env[Any, Any]):
    """An env whose buffer takes 2 MB for 100 transitions."""

    observation_space = gym.spaces.Box(-1, 1, (5000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(5000, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(5000, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize(("large", "alive"), [(1e6, 1), (1e12, 4)])
def test_buffers_of_earlier_fits_are_freed_before_another_one_begins(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, large: float, alive: int
) -> None:
    monkeypatch.setattr(resume, "LARGE", large)
    config = {"model": {"encoder_hidden_size_list": [8]}, "collect": {"n_sample": 16}, "learn": {"batch_size": 8}}
    made: list[weakref.ref[Any]] = []
    for _ in range(4):
        datamodule = ReplayDataModule(Wide, num_envs=2, max_env_step=100, n_evaluator_episode=2)
        make_trainer().fit(DQNPolicy(config), datamodule)
        assert datamodule.nbytes > 1e6
        made.append(weakref.ref(datamodule.buffer))
    assert sum(one() is not None for one in made) == alive
