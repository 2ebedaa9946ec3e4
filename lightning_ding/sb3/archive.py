"""The files of Stable-Baselines3: ``model.zip``, of which only tensors and JSON are read.

``data`` in the archive is JSON. What JSON cannot hold is a pickle there, in ``:serialized:``, with its class and its
attributes as text beside it. Pickles are never read: :mod:`spaces` and :mod:`description` read the text.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

DATA, WEIGHTS = "data", "policy.pth"
VARIABLES = ("pytorch_variables.pth", "tensors.pth")
"""Names of the file of other variables, such as SAC's temperature; the second one is that of old versions."""
UNREADABLE = (pickle.UnpicklingError, EOFError, RuntimeError, ValueError, KeyError, RecursionError)


class Archive(NamedTuple):
    """The content of a ``model.zip``."""

    data: dict[str, Any]
    """Arguments and attributes of the model, by name."""
    weights: dict[str, Tensor]
    """The state dict of its policy."""
    variables: dict[str, Tensor]
    """Other variables, such as ``log_ent_coef``."""


def is_archive(path: str | Path) -> bool:
    """Return whether a file is a ``model.zip``; a checkpoint of torch is a zip file too, with other names in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return WEIGHTS in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def read_archive(path: str | Path) -> Archive:
    """Return the content of a ``model.zip``, on the CPU, without running anything in it.

    Raises:
        ValueError: If it is no such file, or holds anything but tensors and JSON where they belong.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if not {DATA, WEIGHTS} <= names:
                raise ValueError(f"it lacks {' and '.join(sorted({DATA, WEIGHTS} - names))}")
            data = json.loads(archive.read(DATA))
            weights = _tensors(archive, WEIGHTS)
            other = next((name for name in VARIABLES if name in names), None)
            variables = {} if other is None else _tensors(archive, other)
    except (zipfile.BadZipFile, *UNREADABLE) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"path must be a model.zip of Stable-Baselines3, got {str(path)!r}: {reason}") from error
    if not isinstance(data, dict):
        raise ValueError(f"path must be a model.zip of Stable-Baselines3, got {str(path)!r}: 'data' is no JSON object")
    return Archive(data, weights, variables)


def _tensors(archive: zipfile.ZipFile, name: str) -> dict[str, Tensor]:
    content = torch.load(io.BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        return {}
    others = [key for key, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{name} has entries that are no tensors: {others[:3]}")
    return dict(content)
