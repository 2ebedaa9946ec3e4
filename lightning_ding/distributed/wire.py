"""Blocks of tensors as files: safetensors, whole or not there, and read without trust in who wrote them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from lightning_ding.distributed.channel import Block
from lightning_ding.distributed.errors import Refusal
from lightning_ding.worker.buffer.tensor_file import write_tensors

SCHEMA: int = 1
"""Version of the messages and blocks; a worker and a coordinator of two different ones do not talk."""
MAX_DEPTH = 16
"""Dicts within dicts that a block may have."""


def flatten(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the leaves of a nested dict as CPU tensors, by names such as ``"obs/image"``; dtypes stay.

    Raises:
        ValueError: If a key is empty, no string or holds a ``/``, or dicts are too deep.

    Example:
        >>> flatten({"obs": {"x": np.zeros(2, np.uint8)}})
        {'obs/x': tensor([0, 0], dtype=torch.uint8)}
    """
    return dict(_leaves(tensors, ()))


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the nested dict that ``flatten`` was given.

    Raises:
        ValueError: If it was not given one: a name is empty, too deep, or that of a tensor and of a dict.
    """
    tensors: dict[str, Any] = {}
    for name, tensor in flat.items():
        *above, last = name.split("/")
        if not all((*above, last)) or len(above) >= MAX_DEPTH:
            raise ValueError(f"names must be keys joined by '/', at most {MAX_DEPTH}, got {name[:100]!r}")
        below = tensors
        for key in above:
            below = below.setdefault(key, {})
            if not isinstance(below, dict):
                raise ValueError(f"{name[:100]!r} lies in what is a tensor itself")
        if last in below:
            raise ValueError(f"{name[:100]!r} is a tensor and a dict")
        below[last] = tensor
    return tensors


def write_block(file: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a nested dict of tensors or arrays into a file, whose name appears when it is whole.

    It survives the death of every process, but not a power cut: nothing waits for the disk.

    Raises:
        OSError: If there is no room or writing fails; then there is no file of that name, or the old one.
        ValueError: If the dict has keys that ``flatten`` does not take.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        write_tensors(_own_memory(flatten(tensors)), temporary, metadata or {})
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_block(file: Path, max_bytes: int) -> Block:
    """Read what ``write_block`` wrote, with keys in order; whatever else is found runs no code and is refused.

    Nothing stays mapped, so the file may be deleted, or cut short by somebody else, at any time.

    Args:
        file: To read; not followed if it is a symbolic link.
        max_bytes: That it may have; it is not read if it has more.

    Raises:
        Refusal: If there is none (404), it is no plain file (403), too large (413), or torn or foreign (422).
    """
    content = _read(file, max_bytes)
    try:
        tensors = unflatten(dict(sorted(load(content).items())))  # safetensors has them in another order each time
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise Refusal(422, f"{file.name} is torn or no block of tensors: {str(error)[:200]}") from error
    return Block(tensors, header.get("__metadata__") or {})


def _leaves(tensors: Mapping[str, Any], above: tuple[str, ...]) -> list[tuple[str, Tensor]]:
    found = []
    for key, value in tensors.items():
        path = (*above, key)
        if not isinstance(key, str) or not key or "/" in key or len(path) > MAX_DEPTH:
            raise ValueError(f"keys must be strings without '/', at most {MAX_DEPTH} deep, got {path!r}")
        if isinstance(value, Mapping):
            found += _leaves(value, path)
        else:
            found.append(("/".join(path), _tensor(value)))
    return found


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value, order="C")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _own_memory(flat: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with none in another's memory, such as tied weights: safetensors does not take these."""
    seen: set[int] = set()
    own = {}
    for name, tensor in flat.items():
        memory = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone(memory_format=torch.contiguous_format) if memory in seen else tensor.contiguous()
        seen.add(memory)
    return own


def _read(file: Path, max_bytes: int) -> bytes:
    """Return a plain file's bytes; its size is asked of what was opened, so that no other file can take its place."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refusal(404, f"there is no {file.name}") from error
    except OSError as error:  # ELOOP: a link
        raise Refusal(403, f"{file.name} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(403, f"{file.name} is no plain file")
        if status.st_size > max_bytes:
            raise Refusal(413, f"{file.name} must have at most {max_bytes} bytes, got {status.st_size}")
        with os.fdopen(opened, "rb", closefd=False) as stream:
            return stream.read(status.st_size)
    finally:
        os.close(opened)
