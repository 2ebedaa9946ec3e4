"""What vector envs of separate envs share: infos of different types in one dict, seeds, resets and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import require

USUAL = {kind: np.dtype(kind) for kind in (bool, int, float)}
"""The dtypes in which gymnasium joins Python's numbers. They are compared first, because they are the most frequent."""
FITTING: set[tuple[Any, np.dtype[Any]]] = set()
"""Types or dtypes of values, and the dtypes of arrays that hold all such values: what was found out so far."""

NUMBERS = set("biufc")
"""Kinds of dtypes of numbers."""


class JoinedInfos(VectorEnv[Any, Any, Any]):
    """Joins infos as gymnasium does, but in arrays that hold the values of all envs unchanged.

    Gymnasium (1.4) takes the shape and the dtype of an array from the first env. If another env has a value that does
    not fit, gymnasium fails, for example for None or a list of legal moves of another length, or changes the value: 2.5
    becomes 2 after an integer, and any other number than 0 becomes True after a bool. Here numbers of different types
    are joined in an array of a type that holds both, and everything else in an array of objects.
    """

    copy: bool
    call: Callable[..., tuple[Any, ...]]
    configure: Callable[..., None]

    @override
    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key, value in env_info.items():
            column = vector_infos.get(key)
            is_usual = type(column) is np.ndarray and USUAL.get(type(value)) is column.dtype and column.ndim == 1
            if not (column is None or is_usual or _fits(column, value) or key == "final_obs"):
                vector_infos[key] = _wider(key, column, value, vector_infos[f"_{key}"])
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except OverflowError:  # an integer of more than 64 bits
            for key, value in env_info.items():
                if type(value) is int:
                    empty = np.zeros(self.num_envs, dtype=bool)
                    mask = vector_infos.get(f"_{key}", empty)
                    vector_infos[key] = _objects(vector_infos.get(key, empty), mask)
            return super()._add_info(vector_infos, env_info, env_num)


def call_method(env: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Call a method of an env or of one of its wrappers.

    Raises:
        TypeError: If the attribute of this name is not a method.
    """
    method = env.get_wrapper_attr(name)
    if not callable(method):
        raise TypeError(f"{name} must be a method of the env, got an attribute with the value {method!r}")
    method(*args, **kwargs)


def _fits(column: Any, value: Any) -> bool:
    """Return whether a value can be written into the values of the other envs without a change; called at each step."""
    if type(column) is dict:
        return type(value) is dict
    is_array = type(value) is np.ndarray
    if ((value.dtype if is_array else type(value)), column.dtype) not in FITTING:
        return column.dtype == object and column.ndim == 1 and not isinstance(value, dict)
    return bool(column.shape[1:] == value.shape) if is_array else column.ndim == 1


def _wider(key: str, column: Any, value: Any, mask: Any) -> Any:
    """Return the values of the other envs in a form that also holds a value.

    Args:
        key: Name of the value, for an error.
        column: Values of the other envs: an array whose leading axis has the number of envs, or a dict.
        value: The value.
        mask: Which envs have a value.

    Raises:
        TypeError: If one env has a dict, and another one has something else.
    """
    if isinstance(column, dict) or isinstance(value, dict):
        raise TypeError(f"the info {key!r} must be a dict in all envs or in none, got {value!r}")
    is_number = isinstance(value, (bool, int, float, np.number))
    if not (is_number or isinstance(value, np.ndarray)) or column.shape[1:] != np.shape(value):
        return _objects(column, mask)
    kind = np.dtype(int) if type(value) is int else np.asarray(value).dtype  # also for an integer of more bits
    if not {kind.kind, column.dtype.kind} <= NUMBERS:
        return _objects(column, mask)
    if not np.can_cast(kind, column.dtype):
        return column.astype(np.result_type(kind, column.dtype))
    FITTING.add((kind if isinstance(value, np.ndarray) else type(value), column.dtype))
    return column


def _objects(column: Any, mask: Any) -> Any:
    """Return an array of objects with the values of the envs that have one, and None for the others."""
    objects = np.full(len(column), None, dtype=object)
    for env_num in np.flatnonzero(mask):
        objects[env_num] = column[env_num]
    return objects


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Return a seed for each env, from the seed of the first env, a list of seeds, or None."""
    if seed is None or isinstance(seed, (int, np.integer)):
        return [None if seed is None else int(seed) + env_id for env_id in range(num_envs)]
    seeds = list(seed)
    require(len(seeds) == num_envs, "seed", f"an integer, None or a list of {num_envs} of these", len(seeds))
    return seeds


def without_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[dict[str, Any] | None, NDArray[np.bool_]]:
    """Return the options without ``reset_mask``, and the mask of the envs to reset."""
    if options is None or "reset_mask" not in options:
        return options, np.ones(num_envs, dtype=bool)
    mask: Any = options["reset_mask"]
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (num_envs,) and bool(mask.any())
    allowed = f"a boolean array of shape ({num_envs},) with at least one true entry"
    require(is_mask, "options['reset_mask']", allowed, mask)
    return {name: value for name, value in options.items() if name != "reset_mask"}, mask
