"""Envs that keep state outside of their instances."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from tests.envs.state import outside_helpers as helpers

generator = np.random.default_rng(3)
episodes: list[int] = []
count = 0


class Engine:
    """No plain data."""

    def __init__(self) -> None:
        self.heat = 0


class Curriculum:
    """Not an env."""

    level = 0


class Base(gym.Env[Any, Any]):
    """Observations are six numbers."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (6,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(6), {}

    def step(self, action: Any) -> Any:
        return np.resize(self.look(), 6).astype(float), 0.0, False, False, {}

    def look(self) -> Any:
        raise NotImplementedError


class OnClass(Base):
    """Its class, the class of a base and another class have attributes that change."""

    step_size = 1
    seen: ClassVar[list[int]] = []
    draws: ClassVar[np.random.Generator] = np.random.default_rng(1)
    constant = 5

    def look(self) -> Any:
        OnClass.step_size += 1
        Curriculum.level += OnClass.step_size
        self.seen.append(Curriculum.level)
        if len(self.seen) == 2:
            type(self).bonus = 3  # type: ignore[attr-defined]
        return [self.step_size, Curriculum.level, len(self.seen), self.draws.random(), getattr(self, "bonus", 0)]


class InModule(Base):
    """Variables of its module and of another one change."""

    def look(self) -> Any:
        global count
        count += 1
        helpers.advance(count)
        episodes.append(count)
        return [count, generator.random(), len(episodes), helpers.total, helpers.state["level"], helpers.draw()]


class Slots(Base):
    """Has attributes in slots, one of them private."""

    __slots__ = ("__hidden", "shown")

    def __init__(self) -> None:
        self.shown, self.__hidden = 0, 0

    def look(self) -> Any:
        self.shown += 1
        self.__hidden += 2
        return [self.shown, self.__hidden]


class Deletes(Base):
    """Deletes an attribute that each reset creates."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.door = 1
        return super().reset(seed=seed)

    def look(self) -> Any:
        is_open = hasattr(self, "door")
        if is_open:
            del self.door
        return [is_open]


class Global(Base):
    """Draws from the generators of its process."""

    def look(self) -> Any:
        return [random.random(), np.random.random()]


class Opaque(Base):
    """Its class holds an object that is no plain data, and changes."""

    engine = Engine()

    def look(self) -> Any:
        self.engine.heat += 1
        return [self.engine.heat]


class Still(Base):
    """Its class holds an object that is no plain data, and does not change."""

    engine = Engine()

    def look(self) -> Any:
        return [self.engine.heat]
