"""Variables of a module that envs of another module change."""

from __future__ import annotations

import random
from typing import Any

total = 0
state: dict[str, Any] = {"level": 0}
_draws = random.Random(4)


def advance(by: int) -> None:
    global total
    total += by
    state["level"] += 1


def draw() -> float:
    return _draws.random()
