"""Envs of the runs that are ended; in a separate file, because every env process imports it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym

FOR_EVER = 10_000


class Trouble(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that makes trouble in its 30th step of the run, or is slow in every one."""

    def __init__(self, env: gym.Env[Any, Any], fault: str) -> None:
        super().__init__(env)
        self.fault, self.steps = fault, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.fault == "slow":
            time.sleep(0.4)  # two envs, and no episode is shorter than 8 steps: an evaluation takes 6.4 s
        elif self.steps == 30 and self.fault == "env_hangs":
            time.sleep(FOR_EVER)
        elif self.steps == 30 and self.fault == "env_raises":
            raise ArithmeticError("the env failed")
        return self.env.step(action)


def make_env(fault: str | None) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    return env if fault is None else Trouble(env, fault)
