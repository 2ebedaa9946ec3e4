"""Data sets in HDF5 files, as D4RL and DI-engine write them; they are only read (package ``h5py``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.datamodules.dataset import D4RL_NAMES, NAMES, Dataset

DONE = "done"
"""DI-engine's entry for the end of an episode, of which its policies bootstrap no value."""
KNOWN = frozenset({*NAMES, *D4RL_NAMES, DONE})


def read_hdf5(path: Path) -> Dataset:
    """Return the data set of a file with one array for each entry.

    The entries are those of D4RL (``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts``), those of
    DI-engine (``obs``, ``action``, ``reward``, ``next_obs``, ``done``), or our own. Others, such as D4RL's groups
    ``infos`` and ``metadata``, are left out. With DI-engine's ``done``, every end is a termination, as in DI-engine.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or it is no HDF5 file or has no transitions.
        ImportError: If ``h5py`` is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need the package h5py: pip install 'lightning_ding[hdf5]'") from error
    require(path.is_file(), "dataset", "the path of a file", str(path))
    try:
        with h5py.File(path, "r") as file:
            found = {name: file[name][()] for name in file if name in KNOWN and isinstance(file[name], h5py.Dataset)}
    except OSError as error:
        raise ValueError(f"dataset must be an HDF5 file, got {path}: {error}") from error
    return dataset_of(found)


def dataset_of(found: Mapping[str, Any], action_space: spaces.Space[Any] | None = None) -> Dataset:
    """Return the data set of arrays with the names and shapes of D4RL or DI-engine.

    Args:
        found: The arrays.
        action_space: Action space of the env; see :class:`Dataset`.
    """
    named = {"terminated" if name == DONE else D4RL_NAMES.get(name, name): value for name, value in found.items()}
    return Dataset({name: _flat(name, value) for name, value in named.items()}, action_space=action_space)


def _flat(name: str, value: Any) -> NDArray[Any]:
    """Return an entry without the axis of length 1 that DI-engine gives to rewards, ends and discrete actions."""
    array = np.asarray(value)
    has_axis = array.ndim == 2 and array.shape[1] == 1
    is_number = name in ("reward", "terminated", "truncated") or (name == "action" and array.dtype.kind in "iub")
    return array[:, 0] if has_axis and is_number else array
