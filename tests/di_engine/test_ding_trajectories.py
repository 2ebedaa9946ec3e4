"""The same seeds and actions give the same observations, rewards and ends as DI-engine's own envs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ding.di_engine.env_types import translate_envs
from lightning_ding.envs import make_vector_env
from tests.di_engine.make_ding_trajectories import ENVS

TRAJECTORIES: dict[str, Any] = json.loads((Path(__file__).parent / "ding_trajectories.json").read_text())


def test_every_env_has_a_trajectory() -> None:
    assert TRAJECTORIES.keys() == ENVS.keys()
    assert all(len(one["reward"]) >= 10 for one in TRAJECTORIES.values())


@pytest.mark.parametrize("name", ENVS)
def test_an_env_gives_what_di_engines_env_gives(name: str) -> None:
    expected = TRAJECTORIES[name]
    envs = translate_envs(expected["section"], {"type": expected["type"]}, {"type": "base"})
    given = envs.datamodule
    wrappers, kwargs = given.get("wrappers", []), given.get("env_kwargs", {})
    vector: Any = make_vector_env(envs.env, 1, "sync", None, wrappers, kwargs, "disabled")
    env = vector.envs[0]
    obs, reward, done = [env.reset(seed=expected["seed"])[0]], [], []
    for action in expected["action"]:
        if name.startswith("pendulum") and name != "pendulum discrete":
            action = np.array([action], np.float32) * env.action_space.high  # as policies map actions to the bounds
        step = env.step(action)
        obs.append(step[0])
        reward.append(float(step[1]))
        done.append(bool(step[2] or step[3]))
    np.testing.assert_allclose(obs, expected["obs"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(reward, expected["reward"], rtol=1e-6, atol=1e-6)
    assert done == expected["done"]
