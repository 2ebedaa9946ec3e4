"""The files of Stable-Baselines3: ``model.zip``, of which only tensors and JSON are read.

``data`` in the archive is JSON. What JSON cannot hold is a pickle there, in ``:serialized:``, with its class and its
attributes as text next to it. Pickles are never read: :mod:`spaces` and :mod:`description` read the text.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

DATA, WEIGHTS = "data", "policy.pth"
VARIABLES = ("pytorch_variables.pth", "tensors.pth")
"""Names of the file of other variables, such as SAC's temperature; the second one is that of old versions."""
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, pickle.UnpicklingError, RuntimeError),
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError),
)
"""Errors of reading a forged or damaged file."""
EXPANSION = 20
"""Size of the content, as a multiple of the file's, up to which it is read; Stable-Baselines3 does not compress."""
FREE = 50_000_000
"""Bytes of content that are always read."""


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
    except UNREADABLE:
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
            other = next((name for name in VARIABLES if name in names), None)
            limit = FREE + EXPANSION * Path(path).stat().st_size
            _check_size(archive, [DATA, WEIGHTS, *([] if other is None else [other])], limit)
            data = json.loads(archive.read(DATA))
            weights = _tensors(archive, WEIGHTS, limit)
            variables = {} if other is None else _tensors(archive, other, limit)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"path must be a model.zip of Stable-Baselines3, got {str(path)!r}: {reason}") from error
    if not isinstance(data, dict):
        raise ValueError(f"path must be a model.zip of Stable-Baselines3, got {str(path)!r}: 'data' is no JSON object")
    return Archive(data, weights, variables)


def _check_size(archive: zipfile.ZipFile, names: Iterable[str], limit: int) -> None:
    """Raise if entries would take more memory than a file of this size needs; no more than this size is ever read.

    Raises:
        ValueError: Naming the entries and their size.
    """
    names = list(names)
    size = sum(archive.getinfo(name).file_size for name in names)
    if size > limit:
        raise ValueError(f"{', '.join(names[:3])} would have {size} bytes, more than {limit} for a file of this size")


def _tensors(archive: zipfile.ZipFile, name: str, limit: int) -> dict[str, Tensor]:
    file = io.BytesIO(archive.read(name))
    if zipfile.is_zipfile(file):  # a file of torch, but for old ones, is an archive too
        with zipfile.ZipFile(file) as inner:
            _check_size(inner, inner.namelist(), limit)
    file.seek(0)
    content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        return {}
    others = [str(key)[:60] for key, value in content.items() if not (isinstance(key, str) and _is_plain(value))]
    if others:
        raise ValueError(f"{name} has entries that are no tensors of numbers in memory: {others[:3]}")
    broken = next((key for key, value in content.items() if not value.isfinite().all()), None)
    if broken is not None:
        raise ValueError(f"{name} has NaN or infinite numbers in the tensor {broken[:200]!r}")
    return dict(content)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor of real numbers that are all in the file.

    A tensor with strides of 0, or without storage, may have any size.
    """
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    if value.is_quantized or value.is_complex() or value.is_nested:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()
