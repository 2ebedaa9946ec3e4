"""Operations on nested dicts of tensors, the shape of all data in this project.

A *nested tensor* is a tensor, or a dict whose values are nested tensors with the same leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Nested = Union[Tensor, dict[str, "Nested"]]  # noqa: UP007 - `|` cannot join a class and a name in quotes
NestedArray = Union[NDArray[Any], dict[str, "NestedArray"]]  # noqa: UP007


def apply(function: Callable[[Any], Any], data: Any) -> Any:
    """Return ``data`` with ``function`` applied to every leaf.

    Example:
        >>> apply(lambda x: x + 1, {"a": 1, "b": {"c": 2}})
        {'a': 2, 'b': {'c': 3}}
    """
    if isinstance(data, dict):
        return {key: apply(function, value) for key, value in data.items()}
    return function(data)


def leaves(data: Any) -> list[Any]:
    """Return the leaves of ``data`` in the order of its keys."""
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in leaves(value)]
    return [data]


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


def to_tensor(data: Any) -> Nested:
    """Return arrays, scalars and tensors as tensors, without a copy where numpy allows it; float64 becomes float32."""
    return cast(Nested, apply(_tensor, data))


def to_numpy(data: Any) -> NestedArray:
    """Return tensors as numpy arrays on the CPU, sharing memory where they are there already."""
    return cast(
        NestedArray, apply(lambda x: x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x), data)
    )


def from_sample(data: Any) -> Any:
    """Return what a gymnasium space sampled as tensors, integers of any size as int64."""

    def tensor(leaf: Any) -> Tensor:
        array = np.asarray(leaf)
        return torch.from_numpy(array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array)

    return apply(tensor, data)


def as_dicts(data: Any) -> Any:
    """Return data with dicts in place of tuples, with the keys "0", "1" and so on.

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
    return apply(lambda x: x[where], data)


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


def unbind(data: Nested) -> Iterator[Nested]:
    """Yield ``index(data, i)`` for every i of the leading axis, at the cost of one operation for each leaf.

    Example:
        >>> [item["a"].item() for item in unbind({"a": torch.tensor([1, 2])})]
        [1, 2]
    """
    if isinstance(data, dict):
        for values in zip(*map(unbind, data.values()), strict=True):
            yield dict(zip(data, values, strict=True))
    else:
        yield from data.unbind(0)


def split(data: Nested, size: int) -> list[Nested]:
    """Return consecutive parts of ``size`` along the leading axis, the last one smaller if it does not divide."""
    return [index(data, slice(start, start + size)) for start in range(0, length(data), size)]


def _tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == np.object_:
        raise TypeError(f"data must be numbers, got an array of objects: {leaf!r}")
    return torch.from_numpy(array) if array.ndim else torch.tensor(array.item(), dtype=_torch_dtype(array))


def _array(leaf: Any) -> NDArray[Any]:
    return leaf.numpy(force=True) if isinstance(leaf, Tensor) else np.asarray(leaf)


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(array.reshape(1)).dtype


def _join(items: Sequence[Any], function: Callable[[list[Tensor]], Tensor], path: str) -> Nested:
    if not items:
        raise ValueError("items must hold at least one entry, got none")
    first = items[0]
    if not isinstance(first, Mapping):
        if any(isinstance(item, Mapping) for item in items):
            raise ValueError(f"{path or 'data'}: every item must be a tensor, as the first is, got a dict")
        parts = [_tensor(item) for item in items]
        try:
            return function(parts)
        except RuntimeError as error:
            raise ValueError(
                f"{path or 'data'}: cannot join shapes {sorted({tuple(p.shape) for p in parts})}"
            ) from error
    for item in items:
        if not isinstance(item, Mapping) or item.keys() != first.keys():
            got = sorted(item) if isinstance(item, Mapping) else type(item).__name__
            raise ValueError(f"{path or 'data'}: every item must have the keys {sorted(first)}, got {got}")
    return {key: _join([item[key] for item in items], function, f"{path}.{key}" if path else key) for key in first}
