"""Operations on nested dicts of tensors, the form of all data in this project.

A *nested tensor* is a tensor, or a dict whose values are nested tensors with the same leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Union, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Nested = Union[Tensor, dict[str, "Nested"]]  # noqa: UP007 - `|` cannot join a class and a name in quotes
NestedArray = Union[NDArray[Any], dict[str, "NestedArray"]]  # noqa: UP007

OTHER_FLOATS = "deg"
"""Characters of numpy's float64, float16 and longer floats, which become float32, as networks have it."""


def apply(function: Callable[[Any], Any], data: Any) -> Any:
    """Return ``data`` with ``function`` applied to every leaf.

    Example:
        >>> apply(lambda x: x + 1, {"a": 1, "b": {"c": 2}})
        {'a': 2, 'b': {'c': 3}}
    """
    if not isinstance(data, dict):
        return function(data)
    found = {}
    for key, value in data.items():  # each level costs one call, not each leaf
        found[key] = apply(function, value) if isinstance(value, dict) else function(value)
    return found


def leaves(data: Any) -> list[Any]:
    """Return the leaves of ``data`` in the order of its keys."""
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in leaves(value)]
    return [data]


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested dict by names that join its keys with ``/``; empty dicts are left out.

    Raises:
        ValueError: If a key is empty, not a string, or contains a ``/``.

    Example:
        >>> flatten({"obs": {"image": 1, "speed": 2}, "reward": 3})
        {'obs/image': 1, 'obs/speed': 2, 'reward': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise ValueError(f"keys of nested data must be non-empty strings without '/', got {key!r}")
        if type(value) is not np.ndarray and isinstance(value, Mapping):  # the second test is slow
            flat |= {f"{key}/{name}": leaf for name, leaf in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested dict that :func:`flatten` was given.

    Raises:
        ValueError: If a name has an empty key, or names both a leaf and a dict.

    Example:
        >>> unflatten({"obs/image": 1, "obs/speed": 2, "reward": 3})
        {'obs': {'image': 1, 'speed': 2}, 'reward': 3}
    """
    data: dict[str, Any] = {}
    for name, leaf in flat.items():
        if name and "/" not in name and name not in data:  # most are; a replay buffer calls this for every minibatch
            data[name] = leaf
            continue
        *path, last = name.split("/")
        if not all((*path, last)):
            raise ValueError(f"names must be non-empty keys joined by '/', got {name!r}")
        below: Any = data
        for key in path:
            below = below.setdefault(key, {})
            if not isinstance(below, dict):
                raise ValueError(f"{name!r} is inside of a leaf")
        if last in below:
            raise ValueError(f"{name!r} is both a leaf and a dict")
        below[last] = leaf
    return data


def length(data: Any) -> int:
    """Return the size of the leading axis.

    Raises:
        ValueError: If ``data`` has no leaves.
    """
    while isinstance(data, dict):
        if not data:
            raise ValueError("data must hold at least one tensor, got an empty dict")
        data = next(iter(data.values()))
    return len(data)


def to_tensor(data: Any, keep_double: bool = False) -> Nested:
    """Return arrays, scalars and tensors as tensors, without a copy where numpy allows it.

    Floats of other sizes become float32; arrays of float64 stay as they are with ``keep_double``.
    """
    if isinstance(data, dict):
        return {key: to_tensor(value, keep_double) for key, value in data.items()}
    return torch.from_numpy(data) if keep_double and _is_double(data) else _tensor(data)


def to_numpy(data: Any) -> NestedArray:
    """Return tensors as numpy arrays on the CPU, sharing memory if they are already there."""
    if isinstance(data, dict):
        return {key: to_numpy(value) for key, value in data.items()}
    return data.numpy(force=True) if isinstance(data, Tensor) else np.asarray(data)


def to_array(data: Any, keep_double: bool = False) -> NestedArray:
    """Return tensors, arrays and scalars as arrays on the CPU, without a copy where the type allows it.

    Floats of other sizes become float32, so that :func:`to_tensor` keeps the types of the result and networks can read
    them. An array of objects stays as it is, and one of float64 with ``keep_double``.

    Raises:
        TypeError: If a leaf is not a number.
    """
    if keep_double:
        return cast(NestedArray, apply(_float_array, data))
    if isinstance(data, dict):  # most leaves stay as they are, which saves two calls for each
        found = {}
        for name, leaf in data.items():
            is_ready = type(leaf) is np.ndarray and leaf.dtype.char not in OTHER_FLOATS
            found[name] = leaf if is_ready else to_array(leaf)
        return found
    return _float32_array(data)


def from_sample(data: Any) -> Any:
    """Return a sample of a gymnasium space as tensors, with all integers as int64."""

    def tensor(leaf: Any) -> Tensor:
        array = np.asarray(leaf)
        return torch.from_numpy(array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array)

    return apply(tensor, data)


def as_dicts(data: Any) -> Any:
    """Return data with tuples replaced by dicts with the keys "0", "1" and so on.

    Example:
        >>> as_dicts({"a": (1, (2,))})
        {'a': {'0': 1, '1': {'0': 2}}}
    """
    if isinstance(data, dict):
        return {name: as_dicts(below) for name, below in data.items()}
    if isinstance(data, tuple):
        return {str(place): as_dicts(below) for place, below in enumerate(data)}
    return data


def to(data: Nested, device: torch.device | str, non_blocking: bool = False) -> Nested:
    """Return ``data`` on ``device``."""
    return cast(Nested, apply(lambda x: x.to(device, non_blocking=non_blocking), data))


def index(data: Any, where: Any) -> Any:
    """Return ``leaf[where]`` for every leaf."""
    return apply(itemgetter(where), data)


def stack(items: Sequence[Any], axis: int = 0) -> Nested:
    """Return nested data of equal structure stacked along a new axis.

    Raises:
        ValueError: If there is nothing to stack, or the items differ in their keys or shapes.

    Example:
        >>> stack([{"reward": 1.0}, {"reward": 2.0}])
        {'reward': tensor([1., 2.])}
    """
    return _join(items, lambda parts: torch.stack(parts, dim=axis), "")


def concatenate(items: Sequence[Any]) -> Nested:
    """Return nested data of equal structure joined along the leading axis.

    Raises:
        ValueError: If there is nothing to join, or the items differ in their keys or shapes.
    """
    return items[0] if len(items) == 1 else _join(items, torch.cat, "")


def concatenate_arrays(items: Sequence[Any], keep_double: bool = False) -> Any:
    """Return nested arrays of equal structure joined along the leading axis, as arrays.

    Several arrays of float64 become float32, unless ``keep_double`` is set.

    Raises:
        ValueError: If there is nothing to join, or the items differ in their keys or shapes.
    """
    return (
        items[0]
        if len(items) == 1
        else _join(items, np.concatenate, "", _float_array if keep_double else _float32_array)
    )


def stack_arrays(items: Sequence[Any]) -> Any:
    """Return nested data of equal structure stacked along a new leading axis, as arrays.

    Raises:
        ValueError: If there is nothing to stack, or the items differ in their keys or shapes.
    """
    return _join(items, np.stack, "", _float32_array)


def empty_arrays(like: Any, length: int) -> NestedArray:
    """Return arrays with the keys, types and shapes of ``like``, and a leading axis of this length; not initialised."""
    return cast(NestedArray, apply(lambda x: np.empty((length, *x.shape[1:]), x.dtype), like))


def copy_into(columns: dict[str, Any], rows: slice, data: Any) -> bool:
    """Copy nested arrays into rows of others, if their keys, types and shapes are the same.

    Returns:
        Whether they are; otherwise the rows may have been changed.

    Example:
        >>> columns = {"a": np.zeros(3)}
        >>> copy_into(columns, slice(1, 2), {"a": np.ones(1)}), columns["a"].tolist()
        (True, [0.0, 1.0, 0.0])
    """
    if columns.keys() != data.keys():
        return False
    for name, column in columns.items():
        part = data[name]
        if isinstance(column, dict):
            if not isinstance(part, dict) or not copy_into(column, rows, part):
                return False
        elif isinstance(part, dict) or column.dtype != part.dtype or column.shape[1:] != part.shape[1:]:
            return False
        else:
            column[rows] = part
    return True


def unbind(data: Nested) -> Sequence[Nested]:
    """Return ``index(data, i)`` for every i of the leading axis, at the cost of one operation for each leaf.

    Example:
        >>> [item["a"].item() for item in unbind({"a": torch.tensor([1, 2])})]
        [1, 2]
    """
    if isinstance(data, dict):
        columns, parts = [], []
        for value in data.values():
            columns.append(unbind(value) if isinstance(value, dict) else value.unbind(0))
        for values in zip(*columns, strict=True):
            parts.append(dict(zip(data, values)))  # noqa: B905 - hot
        return parts
    return data.unbind(0)


def split(data: Nested, size: int) -> list[Nested]:
    """Return consecutive parts of ``size`` along the leading axis, the last one may be smaller."""
    return [index(data, slice(start, start + size)) for start in range(0, length(data), size)]


def _tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.char in OTHER_FLOATS:
        array = array.astype(np.float32)
    if array.dtype == np.object_:
        raise TypeError(f"data must be numbers, got an array of objects: {leaf!r}")
    if array.ndim:
        return torch.from_numpy(array)
    return torch.tensor(array.item(), dtype=torch.from_numpy(array.reshape(1)).dtype)


def _float32_array(leaf: Any) -> NDArray[Any]:
    if type(leaf) is np.ndarray:  # collectors call this for every column of every step
        return leaf.astype(np.float32) if leaf.dtype.char in OTHER_FLOATS else leaf
    if isinstance(leaf, Tensor):
        leaf = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy(force=True)
    array = np.asarray(leaf)
    if array.dtype == np.object_ and array is not leaf:
        raise TypeError(f"data must be numbers, got an array of objects: {leaf!r}")
    return array.astype(np.float32) if array.dtype.char in OTHER_FLOATS else array


def _is_double(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and leaf.dtype.char == "d" and leaf.ndim > 0


def _float_array(leaf: Any) -> NDArray[Any]:
    if isinstance(leaf, Tensor) and leaf.dtype == torch.float64:
        leaf = leaf.numpy(force=True)
    return cast("NDArray[Any]", leaf) if _is_double(leaf) else _float32_array(leaf)


def _join(
    items: Sequence[Any], function: Callable[[list[Any]], Any], path: str, to_part: Callable[[Any], Any] = _tensor
) -> Nested:
    if not items:
        raise ValueError("items must hold at least one entry, got none")
    first = items[0]
    if not isinstance(first, (dict, Mapping)):  # the check for a dict is fast
        if any(type(item) is not type(first) and isinstance(item, Mapping) for item in items):
            raise ValueError(f"{path or 'data'}: every item must be a tensor, as the first is, got a dict")
        try:
            parts = [to_part(item) for item in items]
        except TypeError as error:
            raise TypeError(f"{path or 'data'}: {error}") from error
        try:
            return cast(Nested, function(parts))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{path or 'data'}: cannot join shapes {sorted({tuple(p.shape) for p in parts})}"
            ) from error
    for item in items:
        if not isinstance(item, (dict, Mapping)) or item.keys() != first.keys():
            got = sorted(item) if isinstance(item, Mapping) else type(item).__name__
            raise ValueError(f"{path or 'data'}: every item must have the keys {sorted(first)}, got {got}")
    return {
        key: _join([item[key] for item in items], function, f"{path}.{key}" if path else key, to_part) for key in first
    }
