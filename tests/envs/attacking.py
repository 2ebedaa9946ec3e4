"""An env that returns what gymnasium does not allow; apart from the tests, so that env processes need no pytest."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

GOOD = np.zeros(3, np.float32)


def _exit() -> Any:
    sys.exit(0)


def _interrupt() -> Any:
    raise KeyboardInterrupt


def _cancel() -> Any:
    raise asyncio.CancelledError


def _cancel_future() -> Any:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.cancel()
    future.result()


STEPS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "4-tuple": lambda: (GOOD, 0.0, False, {}),
    "6-tuple": lambda: (GOOD, 0.0, False, False, {}, 1),
    "list": lambda: [GOOD, 0.0, False, False, {}],
    "no info": lambda: (GOOD, 0.0, False, False, None),
    "array as reward": lambda: (GOOD, np.ones(1), False, False, {}),
    "text as reward": lambda: (GOOD, "1.5", False, False, {}),
    "huge reward": lambda: (GOOD, 10**400, False, False, {}),
    "no reward": lambda: (GOOD, None, False, False, {}),
    "nan as terminated": lambda: (GOOD, 0.0, np.nan, False, {}),
    "text as truncated": lambda: (GOOD, 0.0, False, "False", {}),
    "no observation": lambda: (None, 0.0, False, False, {}),
    "other shape": lambda: (np.zeros(4, np.float32), 0.0, False, False, {}),
    "other last shape": lambda: (np.zeros(4, np.float32), 0.0, True, False, {}),
    "more axes": lambda: (np.zeros((3, 1), np.float32), 0.0, False, False, {}),
    "text as observation": lambda: (np.array(["1", "2", "3"]), 0.0, False, False, {}),
    "exit": _exit,
    "interrupt": _interrupt,
    "cancelled task": _cancel,
    "cancelled future": _cancel_future,
}
"""Answers of a step, by the name of the attack."""


class AttackingEnv(gym.Env[Any, Any]):
    """Follows the API until the third step of an episode, which makes the attack of that name."""

    attack = ""

    def __init__(self, attack: str = "") -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.attack = attack
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        if self.attack == "none in reset":
            self.attack = ""
            return None
        return GOOD.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3 and self.attack in STEPS:
            return STEPS[self.attack]()
        return GOOD.copy(), 1.0, self.steps == 5, False, {}


class InfoEnv(AttackingEnv):
    """Returns an info that a test sets."""

    info: Mapping[str, Any] = MappingProxyType({})

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], dict(self.info)


class IndexEnv(AttackingEnv):
    """Observes an index, which is outside of its space in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 7 if self.steps == 2 else 1, *super().step(action)[1:]


class OutsideEnv(AttackingEnv):
    """Observes 2.5 in a space that ends at 1."""

    def step(self, action: Any) -> Any:
        return GOOD + np.float32(2.5), *super().step(action)[1:]


class WideEnv(AttackingEnv):
    """Returns observations in a wider type than its space has; the third step gives a number that does not fit.

    Args:
        space: Observation space, with three entries.
        kind: Type of the observations.
        value: The number that does not fit.
        ends: Whether the third step ends the episode.
    """

    def __init__(self, space: gym.spaces.Box, kind: str, value: float, ends: bool = False) -> None:
        super().__init__()
        self.observation_space, self.kind, self.value, self.ends = space, kind, value, ends

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0].astype(self.kind), {}

    def step(self, action: Any) -> Any:
        _, reward, _, truncated, info = super().step(action)
        obs = np.full(3, self.value if self.steps == 3 else self.steps, self.kind)
        return obs, reward, self.ends and self.steps == 3, truncated, info
