"""A learner's checkpoint as a file: tensors and builtins only, and there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def write_checkpoint(file: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` under a temporary name and rename it.

    Args:
        file: Where to; its folder is made.
        state: Nested mappings, lists and tuples of tensors, numpy values and builtins.

    Raises:
        TypeError: If it holds anything else, which could not be read back safely; nothing is written then.
    """
    plain = _plain(state, "the state")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        torch.save(plain, temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(file: str | Path) -> dict[str, Any]:
    """Return what ``write_checkpoint`` wrote, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: If the file holds something else than a state.
    """
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError(f"{file} must hold a dict, the state of a learner, got {type(state).__name__}")
    return state


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(below, f"{path}[{key!r}]") for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_plain(below, f"{path}[{number}]") for number, below in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"{path} must be a tensor or a builtin to be saved, got {type(value).__name__}")
