"""An env that writes down each step that is really taken, and shows the number of the line that it wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

ENV = "Witness-v0"
CARTPOLE_ENV = "CountedCartPole-v1"
LINE = 13  # bytes
BASE = 1024  # the number is shown as two digits to this base, each below 1


class WitnessEnv(gym.Env[Any, Any]):
    """Episodes of 8 steps; all envs of all processes append to one file.

    A line is the number that was shown before the step and the action. Lines count from 1; 0 is shown after a reset.
    """

    def __init__(self, file: str) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._number = self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        os.write(self._file, f"{self._number:10d} {int(action)}\n".encode())
        self._number = os.lseek(self._file, 0, os.SEEK_CUR) // LINE
        self._steps += 1
        return self._show(), 1.0, self._steps == 8, False, {}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _show(self) -> Any:
        return np.array([self._number // BASE / BASE, self._number % BASE / BASE], np.float32)


class CountedCartPole(CartPoleEnv):
    """CartPole-v1 that appends a byte to a file for each step."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step(self, action: Any) -> Any:
        os.write(self._file, b".")
        return super().step(action)  # type: ignore[no-untyped-call]


def numbers(obs: Any) -> list[int]:
    """Return what was shown, of observations (K, 2)."""
    digits = np.rint(np.asarray(obs, np.float64) * BASE).astype(int)
    found: list[int] = (digits[:, 0] * BASE + digits[:, 1]).tolist()
    return found


def taken(file: Path) -> list[tuple[int, int]]:
    """Return the steps that were taken, each with the number shown before it and the action."""
    return [(int(line[:10]), int(line[11:])) for line in file.read_text().splitlines()]


if "Witness-v0" not in gym.registry:
    gym.register("Witness-v0", entry_point=f"{__name__}:WitnessEnv")
    gym.register("CountedCartPole-v1", entry_point=f"{__name__}:CountedCartPole", max_episode_steps=500)
