"""An env that hangs; in a separate file, so that its process imports no more than it needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym


class Hangs(gym.Wrapper[Any, Any, Any, Any]):
    """Hangs in its seventh step, unless another env has hung already."""

    def __init__(self, env: gym.Env[Any, Any], mark: Path) -> None:
        super().__init__(env)
        self.mark = mark
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 7 and not self.mark.exists():
            self.mark.touch()
            time.sleep(600)
        return self.env.step(action)
