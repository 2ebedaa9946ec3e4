"""Infos of several envs in one dict, also where envs have values of different types or shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from typing_extensions import override

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
