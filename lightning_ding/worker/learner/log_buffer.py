"""Metrics that updates report, sorted by kind and converted to numbers, so that hooks need not check types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Scalar = float | Tensor
LogBuffer = dict[str, dict[str, Any]]


def empty_log_buffer() -> LogBuffer:
    """Return the empty groups ``scalar``, ``scalars`` and ``histogram``."""
    return {"scalar": {}, "scalars": {}, "histogram": {}}


def sort_outputs(outputs: Sequence[Mapping[str, Any]]) -> LogBuffer:
    """Return the metrics that several updates report, in groups.

    The names ``[scalars]name`` and ``[histogram]name`` contain their group in brackets; other values are ``scalar``.
    The value of a name is the mean over the updates that report it; histograms are concatenated.

    Args:
        outputs: The report of each update: numbers, or numpy or torch values of any shape, which are averaged; mappings
            of these in ``[scalars]``.

    Returns:
        ``scalar``: floats, or tensors of shape () that stay on their device, so nothing waits for it; ``scalars``:
        mappings of these; ``histogram``: tensors of shape (values,).

    Raises:
        TypeError: If a value is not a number; the message names it.
    """
    values: dict[tuple[str, str], list[Any]] = {}
    for output in outputs:
        for key, value in output.items():
            values.setdefault(_group_and_name(key), []).append(value)
    buffer = empty_log_buffer()
    for (group, name), reported in values.items():
        buffer[group][name] = _JOIN[group](name, reported)
    return buffer


def to_scalar(name: str, value: Any) -> Scalar:
    """Return a value as a scalar. Arrays and tensors are averaged; a tensor stays a tensor, of shape ().

    Raises:
        TypeError: If ``value`` is not a number.
    """
    if isinstance(value, Tensor) and not value.is_complex() and value.numel():
        return value.detach().float().mean()
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, (np.generic, np.ndarray, list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and array.size:
            return float(array.mean())
    raise TypeError(
        f"{name!r} must be a number, or an array of them, to be reported, got {type(value).__name__}: {value!r}"
    )


def _group_and_name(key: str) -> tuple[str, str]:
    for group in ("scalars", "histogram"):
        if f"[{group}]" in key:
            return group, key.rpartition("]")[2]
    return "scalar", key


def _mean(name: str, values: Sequence[Any]) -> Scalar:
    total = to_scalar(name, values[0])
    for value in values[1:]:
        total = total + to_scalar(name, value)
    return total / len(values)


def _mean_of_each(name: str, values: Sequence[Any]) -> dict[str, Scalar]:
    for value in values:
        if not isinstance(value, Mapping):
            raise TypeError(f"'[scalars]{name}' must be a mapping of numbers, got {type(value).__name__}")
    below = dict.fromkeys(key for value in values for key in value)
    return {key: _mean(f"{name}/{key}", [value[key] for value in values if key in value]) for key in below}


def _join(name: str, values: Sequence[Any]) -> Tensor:
    try:
        return torch.cat([torch.as_tensor(value).detach().reshape(-1).float().cpu() for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"'[histogram]{name}' must be numbers, got {values!r}") from error


_JOIN = {"scalar": _mean, "scalars": _mean_of_each, "histogram": _join}
