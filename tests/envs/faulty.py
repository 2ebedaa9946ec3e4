"""An env that breaks down; apart from the tests, so that processes which make it need not import pytest."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.toys.envs import CountingEnv


def break_down(kind: str) -> None:
    if kind == "raise":
        raise ArithmeticError("it broke")
    if kind == "exit":
        os._exit(3)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "lock":
        ctypes.PyDLL(None).sleep(3600)  # holds Python's lock
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


class FaultyEnv(CountingEnv):
    """A CountingEnv that breaks down at some places, each an episode and a step, which is 0 in a reset.

    With a ``marker``, a file that is not there yet, it does so once: not in the process that comes after.
    """

    def __init__(self, number: int = 0, kind: str = "raise", places: Sequence[Any] = (), marker: Any = None) -> None:
        super().__init__(number, (3,))
        self.kind, self.places, self.marker = kind, places, marker
        self.seeds: list[int | None] = []
        self.at("made")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        observed = super().reset(seed=seed)
        self.at((self._episode, 0))
        return observed

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        self.at((self._episode, self._step))
        return timestep

    def close(self) -> None:
        self.at("close")

    def at(self, place: Any) -> None:
        if place not in self.places or (self.marker is not None and os.path.exists(self.marker)):
            return
        if self.marker is not None:
            Path(self.marker).touch()
        break_down(self.kind)
