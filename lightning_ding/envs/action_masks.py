"""Checks of the masks of legal actions; the wrapper that adds masks to observations is in ``wrappers``.

Policies read a mask from the entry ``action_mask`` of a Dict observation: non-zero where an action is legal. Masks of
several dimensions are side by side.

Shapes: N envs, A actions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

KEY = "action_mask"
OTHER_KEY = "action_masks"
HINT = "policies read masks only from the entry 'action_mask' at the top of a Dict observation"


def mask_sizes(space: gym.Space[Any]) -> tuple[int, ...] | None:
    """Return the number of choices in each dimension of an action; None if its space has no masks.

    Example:
        >>> mask_sizes(spaces.MultiDiscrete([3, 2])), mask_sizes(spaces.Box(-1, 1))
        ((3, 2), None)
    """
    if isinstance(space, spaces.Dict):  # a hybrid action: the mask is that of its type
        kind = space.spaces.get("action_type")
        return None if kind is None else mask_sizes(kind)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(size) for size in space.nvec.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.n))
    return None


def check_mask_space(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    """Raise if the mask in an observation does not have as many entries as there are actions.

    Raises:
        ValueError: Naming the number of entries.
    """
    sizes = mask_sizes(action_space)
    if sizes is None or not isinstance(observation_space, spaces.Dict) or KEY not in observation_space.spaces:
        return
    shape = observation_space[KEY].shape or ()
    allowed = f"of shape ({sum(sizes)},), one entry for each action of {action_space}"
    require(int(np.prod(shape)) == sum(sizes), f"the entry {KEY} of observations", allowed, shape)


def mask_starts(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> NDArray[np.int64] | None:
    """Return where the choices of each dimension of an action begin in the mask; None if observations have no mask."""
    has_mask = isinstance(observation_space, spaces.Dict) and KEY in observation_space.spaces
    sizes = mask_sizes(action_space) if has_mask else None
    return None if sizes is None else np.cumsum((0, *sizes[:-1]))


def check_legal(obs: Any, starts: NDArray[np.int64], ignored: NDArray[np.bool_]) -> None:
    """Raise if an env has no legal action.

    Args:
        obs: Observations to act on, with ``action_mask`` of shape (N, A).
        starts: Positions that :func:`mask_starts` returned.
        ignored: Envs whose next action does not matter, shape (N,).

    Raises:
        ValueError: Naming the env.
    """
    mask = np.asarray(obs[KEY]) != 0
    legal = np.logical_or.reduceat(mask.reshape(len(mask), -1), starts, axis=1).all(1) | ignored
    if not legal.all():
        env_id = int(np.flatnonzero(~legal)[0])
        raise ValueError(f"env {env_id} gave an action_mask without a legal action: {obs[KEY][env_id]}")


def warn_of_unseen_mask(env: gym.Env[Any, Any], info: Mapping[str, Any]) -> None:
    """Warn if an env gives masks of legal actions where policies do not look for them.

    Args:
        env: An env with all its wrappers.
        info: Info of a reset.
    """
    space = env.observation_space
    if mask_sizes(env.action_space) is None or (isinstance(space, spaces.Dict) and KEY in space.spaces):
        return
    found = [f"info[{key!r}]" for key in (KEY, OTHER_KEY) if key in info]
    found += ["the method action_masks()"] if env.has_wrapper_attr(OTHER_KEY) else []
    cure = f"the wrapper {KEY!r} adds it" if found else f"rename or move it to {KEY!r}"
    found += _entries(space)
    if found:
        who = type(env.unwrapped).__name__
        warnings.warn(f"{who} gives a mask of legal actions as {found[0]}, but {HINT}; {cure}", stacklevel=2)


def _entries(space: gym.Space[Any], path: str = "") -> list[str]:
    """Return the paths of entries of a Dict space that are named like masks."""
    if not isinstance(space, spaces.Dict):
        return []
    own = [f"the entry {path}{key}" for key in space.spaces if key in (KEY, OTHER_KEY)]
    return own + [one for key, below in space.spaces.items() for one in _entries(below, f"{path}{key}.")]
