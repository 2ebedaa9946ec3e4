"""An env that waits rather than computes, and what RLlib collects from it; used by ``benchmarks.distributed``."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

ENVS = 4  # envs of each collector
SLEEP = 0.005  # seconds of an env's step
LENGTH = 200  # steps of an episode
HIDDEN = 16  # units of the network's only layer
UNROLL = 16  # steps of a sequence of IMPALA
ENV_ID = "Waiting-v0"
MODULE = "benchmarks.waiting"  # to be imported for it


class Waiting(gym.Env[Any, Any]):
    """An env whose step takes 5 ms and computes nothing; an episode has 200 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._length = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep and return the same observation again."""
        time.sleep(SLEEP)
        self._length += 1
        return np.zeros(4, np.float32), 1.0, False, self._length == LENGTH, {}


gym.register(ENV_ID, f"{MODULE}:Waiting")


def run_rllib(collectors: int, seconds: float) -> dict[str, float]:
    """Return the env steps a second that RLlib's env runners take, with weights synchronised between two samples."""
    ray: Any = import_module("ray")
    config: Any = import_module("ray.rllib.algorithms.dqn").DQNConfig()
    ray.init(
        "local", num_cpus=collectors + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    config = config.environment(Waiting).framework("torch")
    config = config.env_runners(num_env_runners=collectors, num_envs_per_env_runner=ENVS, rollout_fragment_length=16)
    algorithm: Any = config.build_algo()
    group: Any = algorithm.env_runner_group
    steps, start = 0, 0.0
    for number in range(1_000_000):
        if number == 3:  # the first ones start envs
            steps, start = 0, time.perf_counter()
        elif number > 3 and time.perf_counter() - start > seconds:
            break
        group.sync_weights()
        sampled = group.foreach_env_runner(lambda runner: runner.sample(), local_env_runner=False)
        steps += sum(len(episode) for episodes in sampled for episode in episodes)
    passed = time.perf_counter() - start
    algorithm.stop()
    ray.shutdown()
    return {"seconds": passed, "env_steps_per_second": steps / passed}
