"""The spaces of an env as builtins, for checkpoints and other files of a trained policy.

A Box is ``{"type": "Box", "low": ..., "high": ..., "shape": [...], "dtype": "float32"}``, where bounds that all
dimensions share are one number, and infinite ones are the words "inf" and "-inf", which strict JSON can hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from lightning_ding.config import require


def to_plain(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space as builtins.

    Raises:
        TypeError: If it is not made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Example:
        >>> to_plain(spaces.Discrete(3, start=1))
        {'type': 'Discrete', 'n': 3, 'start': 1, 'dtype': 'int64'}
        >>> from_plain(to_plain(spaces.Box(-1, np.inf, (2,))))
        Box(-1.0, inf, (2,), float32)
    """
    for kind, write in WRITERS.items():
        if isinstance(space, kind):
            return {"type": kind.__name__, **write(space)}
    raise TypeError(f"the space must be made of {', '.join(READERS)}, got {space}")


def from_plain(plain: Mapping[str, Any]) -> spaces.Space[Any]:
    """Return the space that :func:`to_plain` was given.

    Raises:
        ValueError: If the type is unknown.
        KeyError: If an entry is missing.
    """
    kind = plain.get("type")
    require(kind in READERS, "the type of a saved space", f"one of {list(READERS)}", kind)
    return READERS[str(kind)](plain)


def _box(space: spaces.Box) -> dict[str, Any]:
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {**bounds, "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}


def _bound(values: np.ndarray[Any, Any]) -> Any:
    """Return the bounds of all dimensions, or the one that they share, as numbers or words."""
    if values.size and (values == values.flat[0]).all():
        return _word(values.flat[0].item())
    return [_word(value) for value in values.ravel().tolist()]


def _word(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _read_box(plain: Mapping[str, Any]) -> spaces.Box:
    kind, shape = np.dtype(plain["dtype"]), tuple(plain["shape"])
    low, high = (np.broadcast_to(np.array(plain[name], kind), _size(plain[name], shape)) for name in ("low", "high"))
    return spaces.Box(low.reshape(shape), high.reshape(shape), shape, kind.type)


def _size(bound: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (len(bound),) if isinstance(bound, list) else shape


WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    spaces.Box: _box,
    spaces.Discrete: lambda one: {"n": int(one.n), "start": int(one.start), "dtype": np.dtype(one.dtype).name},
    spaces.MultiDiscrete: lambda one: {
        **{"nvec": one.nvec.tolist(), "start": one.start.tolist(), "dtype": np.dtype(one.dtype).name}
    },
    spaces.MultiBinary: lambda one: {"n": int(one.n) if np.ndim(one.n) == 0 else list(one.shape)},
    spaces.Dict: lambda one: {"spaces": {name: to_plain(below) for name, below in one.spaces.items()}},
    spaces.Tuple: lambda one: {"spaces": [to_plain(below) for below in one.spaces]},
}
READERS: dict[str, Callable[[Mapping[str, Any]], spaces.Space[Any]]] = {
    "Box": _read_box,
    "Discrete": lambda one: spaces.Discrete(one["n"], start=one["start"], dtype=np.dtype(one["dtype"]).type),
    "MultiDiscrete": lambda one: spaces.MultiDiscrete(
        np.array(one["nvec"]), np.dtype(one["dtype"]).type, start=np.array(one["start"])
    ),
    "MultiBinary": lambda one: spaces.MultiBinary(one["n"]),
    "Dict": lambda one: spaces.Dict({name: from_plain(below) for name, below in one["spaces"].items()}),
    "Tuple": lambda one: spaces.Tuple([from_plain(below) for below in one["spaces"]]),
}
