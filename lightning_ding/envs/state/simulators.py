"""Simulators whose state is not plain data, but which return it: MuJoCo and ALE."""

from __future__ import annotations

from typing import Any

from lightning_ding.envs.state.ale import is_ale, load_ale, read_ale
from lightning_ding.envs.state.memo import NotPlainError
from lightning_ding.envs.state.mujoco import RENDERING, is_mujoco, load_mujoco, mujoco_parts, read_mujoco

State = dict[str, Any]


def is_simulator(value: Any) -> bool:
    """Return whether a value is a simulator whose state can be read."""
    return is_mujoco(value) or is_ale(value)


def is_rendering(value: Any) -> bool:
    """Return whether a value only renders a simulator."""
    return type(value).__module__ == RENDERING


def simulator_name(value: Any) -> str:
    """Return the name of a simulator's class."""
    return "ALEInterface" if is_ale(value) else type(value).__name__


def simulator_parts(value: Any) -> State:
    """Return the simulators within a simulator, by the names of their entries in its state."""
    return mujoco_parts(value) if is_mujoco(value) else {}


def read_simulator(value: Any, path: str) -> State:
    """Return the state of a simulator: plain data, and the simulators within it.

    Raises:
        NotPlainError: If its state cannot be read.
    """
    return read_mujoco(value, path) if is_mujoco(value) else read_ale(value, path)


def load_simulator(value: Any, name: str, state: State, path: str) -> None:
    """Restore what ``read_simulator`` returned for a simulator of the class ``name``.

    Raises:
        NotPlainError: If the state belongs to a different simulator.
    """
    if simulator_name(value) != name:
        raise NotPlainError(f"{path} was a {name} when saved, got {type(value).__name__}")
    load = load_mujoco if is_mujoco(value) else load_ale
    load(value, state, path)
