"""Transitions as lists of dicts of tensors.

Shapes: K transitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested


def to_list(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns as a list of transitions.

    Args:
        columns: Nested arrays or tensors with leading axis K.

    Returns:
        K dicts. An entry that is one number for each transition is a Python number, another one is a tensor, which
        shares the memory of its column.

    Example:
        >>> to_list({"obs": np.zeros((2, 3), np.float32), "done": np.array([False, True])})[1]
        {'obs': tensor([0., 0., 0.]), 'done': True}
    """
    separate = {name: _rows_of(value) for name, value in columns.items()}
    return [dict(zip(separate, values, strict=True)) for values in zip(*separate.values(), strict=True)]


def _rows_of(column: Any) -> list[Any]:
    if isinstance(column, Mapping):
        return to_list(column)
    if column.ndim == 1:
        return list(column.tolist())
    tensor = nested.to_tensor(column)
    return list(tensor.unbind(0))  # type: ignore[union-attr]


def to_tensor_transitions(
    data: Sequence[Mapping[str, Any]] | Mapping[str, Any], shallow_copy_next_obs: bool = True
) -> list[dict[str, Any]]:
    """Return a list of transitions with tensors in place of arrays; the tensors are copies.

    Args:
        data: Transitions, or columns with a leading axis K. Arrays and tensors may be nested in mappings, lists and
            tuples. Scalars, strings and None stay as they are; numpy's scalars become Python's.
        shallow_copy_next_obs: Use the ``obs`` of the following transition as ``next_obs`` where the two are equal,
            which saves memory. Changing one of them in place then changes the other. At an episode's end or before a
            gap they differ, and ``next_obs`` stays separate.

    Returns:
        As many transitions; arrays of other floats have become float32.

    Raises:
        TypeError: If a value has an unsupported type; the message names its place.

    Example:
        >>> first = {"obs": np.zeros(2), "next_obs": np.ones(2), "terminated": False}
        >>> second = {"obs": np.ones(2), "next_obs": np.full(2, 2.0), "terminated": True}
        >>> one, two = to_tensor_transitions([first, second])
        >>> one["next_obs"] is two["obs"], two["next_obs"], two["terminated"]
        (True, tensor([2., 2.]), True)
    """
    listed = to_list(data) if isinstance(data, Mapping) else data
    transitions = [_to_tensor(transition, "") for transition in listed]
    if shallow_copy_next_obs:
        for transition, following in itertools.pairwise(transitions):
            if "next_obs" in transition and "obs" in following and _equal(transition["next_obs"], following["obs"]):
                transition["next_obs"] = following["obs"]
    return transitions


def _to_tensor(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_tensor(below, f"{path}.{key}" if path else str(key)) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_tensor(below, f"{path}[{place}]") for place, below in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value.item() if isinstance(value, np.generic) else value  # np.float64 is a float, np.str_ a str
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.tensor(value.astype(np.float32) if value.dtype.char in nested.OTHER_FLOATS else value)
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise TypeError(f"{path} must be an array, a tensor, a number, a string or None, got {kind}")


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)
