"""What is constant by nature, such as functions and classes, and what state it may hold nevertheless."""

from __future__ import annotations

import functools
import logging
import random
import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

CONSTANT: tuple[type, ...] = (type, EnvSpec, logging.Logger, functools.partial, types.ModuleType, np.ufunc)
CONSTANT += (types.FunctionType, types.MethodType, types.BuiltinFunctionType, np.dtype, torch.dtype, torch.device)
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, np.generic, logging.Logger, types.ModuleType, type)
CHANGEABLE: tuple[type, ...] = (list, dict, set, deque, bytearray, torch.Tensor)
CHANGEABLE += (np.random.Generator, np.random.RandomState, random.Random)
DEPTH = 10


def state_within(value: Any, layers: Sequence[Any], depth: int = 0) -> str | None:
    """Return what something constant by nature holds that may change, or None.

    Args:
        value: One of ``CONSTANT``.
        layers: Envs and wrappers whose state is read; their methods are constant.
        depth: How deep it lies in something else.

    Returns:
        Words that go behind its name.
    """
    if depth > DEPTH:
        return None
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        return _bound_to(value.__self__, layers)
    if isinstance(value, functools.partial):
        held = [value.func, *value.args, *value.keywords.values()]
        return _first_held(held, layers, depth, "is a functools.partial of")
    if isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] != "gymnasium":
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return _first_held([*_cells(value), *defaults], layers, depth, "is a function that holds")
    return None


def _bound_to(owner: Any, layers: Sequence[Any]) -> str | None:
    if isinstance(owner, IMMUTABLE) or any(owner is layer for layer in layers):
        return None
    return f"is a method of {_a(owner)}"


def _first_held(held: Sequence[Any], layers: Sequence[Any], depth: int, words: str) -> str | None:
    for one in held:
        if isinstance(one, CHANGEABLE) or (isinstance(one, np.ndarray) and one.flags.writeable):
            return f"{words} {_a(one)}"
        below = state_within(one, layers, depth + 1)
        if below is not None:
            return f"{words} what {below}"
    return None


def _cells(function: types.FunctionType) -> list[Any]:
    """Return what a function took from the one that it was made in."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it has none yet
            continue
    return found


def _a(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
