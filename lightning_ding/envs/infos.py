"""Infos of several envs in one dict, also where envs have values of different types or shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from typing_extensions import override


class JoinedInfos(VectorEnv[Any, Any, Any]):
    """Joins infos as gymnasium does, and in arrays of objects where one array of numbers cannot hold all values.

    Gymnasium (1.4) takes the shape and the dtype of an array from the first env, and fails if another env has a value
    that does not fit, for example None or a list of legal moves of another length.
    """

    @override
    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except (TypeError, ValueError, AttributeError):
            return super()._add_info(_with_objects(vector_infos, env_info), env_info, env_num)


def _with_objects(vector_infos: Mapping[str, Any], env_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos in which every array that cannot hold the value of another env is an array of objects."""
    joined = dict(vector_infos)
    for key, value in env_info.items():
        column = joined.get(key)
        if column is None or (isinstance(column, dict) and isinstance(value, dict)):
            continue
        if isinstance(column, dict) or isinstance(value, dict):
            raise TypeError(f"the info {key!r} must be a dict in all envs or in none, got {value!r}")
        if not _fits(column, value):
            objects = np.full(len(column), None, dtype=object)
            for env_num in np.flatnonzero(joined[f"_{key}"]):
                objects[env_num] = column[env_num]
            joined[key] = objects
    return joined


def _fits(column: Any, value: Any) -> bool:
    try:
        column[:1].copy()[0] = value
    except (TypeError, ValueError):
        return False
    return True
