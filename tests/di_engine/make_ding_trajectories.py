"""Writes ding_trajectories.json: observations and rewards of DI-engine's envs for fixed seeds and actions.

Run it with a Python that has DI-engine 0.5.3, its dizoo, gym 0.25.1 and imageio:
``python make_ding_trajectories.py ding_trajectories.json``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from easydict import EasyDict

SEED = 5
STEPS = 12
PENDULUM = "dizoo.classic_control.pendulum.envs.pendulum_env:PendulumEnv"
ENVS: dict[str, tuple[str, str, dict[str, Any], int | None]] = {
    "cartpole": ("dizoo.classic_control.cartpole.envs.cartpole_env:CartPoleEnv", "cartpole", {}, 2),
    "acrobot": ("dizoo.classic_control.acrobot.envs.acrobot_env:AcroBotEnv", "acrobot", {}, 3),
    "pendulum": (PENDULUM, "pendulum", {"act_scale": True}, None),
    "pendulum unscaled": (PENDULUM, "pendulum", {"act_scale": False}, None),
    "pendulum discrete": (PENDULUM, "pendulum", {"act_scale": True, "continuous": False}, 11),
    "taxi": ("dizoo.taxi.envs.taxi_env:TaxiEnv", "taxi", {"env_id": "Taxi-v3", "max_episode_steps": 10}, 6),
    "cliffwalking": (
        "dizoo.cliffwalking.envs.cliffwalking_env:CliffWalkingEnv",
        "cliffwalking",
        {"max_episode_steps": 11},
        4,
    ),
}
"""Class, env type, section, and number of actions; None for an action in [-1, 1]."""


def run(path: str, kind: str, section: dict[str, Any], num_actions: int | None) -> dict[str, Any]:
    """Return the type, the section, the actions, and what the env returns for them."""
    module, _, name = path.partition(":")
    env = getattr(import_module(module), name)(EasyDict(section))
    env.seed(SEED, dynamic_seed=False)
    draw = np.random.RandomState(0)
    obs, reward = [np.asarray(env.reset()).tolist()], []
    done: list[bool] = []
    actions: list[float] = []
    while len(actions) < STEPS and not any(done):
        value = draw.uniform(-1, 1) if num_actions is None else draw.randint(num_actions)
        action = np.array([value], np.float32 if num_actions is None else np.int64)
        timestep = env.step(action)
        actions.append(action.item())
        obs.append(np.asarray(timestep.obs).tolist())
        reward.append(float(np.asarray(timestep.reward).item()))
        done.append(bool(timestep.done))
    return {
        "type": kind,
        "section": section,
        "seed": SEED,
        "action": actions,
        "obs": obs,
        "reward": reward,
        "done": done,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({name: run(*given) for name, given in ENVS.items()}) + "\n")
