"""CartPole that writes every step that is really taken into a file, from all processes of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

ENV = "RecordedCartPole-v1"
COLUMNS = 9
"""Numbers of a step: observation (4), action (1), next observation (4), each in 32 bits."""


class RecordedCartPole(CartPoleEnv):
    """CartPole-v1 with a record of its steps.

    Args:
        file: File to which each step is appended.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._shown = np.zeros(4, np.float32)

    def reset(self, **options: Any) -> Any:
        found = super().reset(**options)
        self._shown = np.asarray(found[0], np.float32)
        return found

    def step(self, action: Any) -> Any:
        found = super().step(action)  # type: ignore[no-untyped-call]
        shown = np.asarray(found[0], np.float32)
        os.write(self._file, np.concatenate([self._shown, [np.float32(action)], shown]).astype(np.float32).tobytes())
        self._shown = shown
        return found


def recorded(file: Path) -> NDArray[np.float32]:
    """Return the steps that were taken, one in each row; a step that is just being written is left out."""
    content = file.read_bytes() if file.exists() else b""
    whole = len(content) // (4 * COLUMNS) * 4 * COLUMNS
    return np.frombuffer(content[:whole], np.float32).reshape(-1, COLUMNS)


if ENV not in gym.registry:
    gym.register(ENV, entry_point=f"{__name__}:RecordedCartPole", max_episode_steps=500)
