"""A datamodule's arguments as plain values, for loggers and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value as None, booleans, numbers, strings, lists and dicts; what is called by its name.

    Example:
        >>> plain({"env_id": partial(dict, a=1), "wrappers": (plain,), "seed": np.int64(3)})
        {'env_id': 'builtins.dict', 'wrappers': ['lightning_ding.datamodules.arguments.plain'], 'seed': 3}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, partial):
        return plain(value.func)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(below) for below in value]
    return getattr(value, "id", None) or str(value)
