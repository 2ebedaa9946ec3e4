"""Blocks of tensors as safetensors files, which appear when they are complete and are read without trusting them."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lightning_ding import nested
from lightning_ding.distributed.transport import Block, Refusal
from lightning_ding.worker.buffer.files import write_tensors

MAX_DEPTH = 16
"""Maximum number of nested dicts in a block."""


def flatten(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the leaves of a nested dict as CPU tensors, with names such as ``"obs/image"`` and their own dtypes.

    Raises:
        ValueError: If a key is empty, not a string or contains a ``/``, or dicts are nested too deeply.

    Example:
        >>> flatten({"obs": {"x": np.zeros(2, np.uint8)}})
        {'obs/x': tensor([0, 0], dtype=torch.uint8)}
    """
    flat = nested.flatten(tensors)
    _check_depth(flat)
    return {name: _tensor(value) for name, value in flat.items()}


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the nested dict from which ``flatten`` has made ``flat``.

    Raises:
        ValueError: If a name is empty, has too many keys, or names both a tensor and a dict.
    """
    _check_depth(flat)
    return nested.unflatten(flat)


def write_block(file: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a nested dict of tensors or arrays into a file, which appears when it is complete.

    The file survives the death of every process, but not a power failure, because it is not synced.

    Raises:
        OSError: If there is no space or writing fails; then the file does not exist, or is the old one.
        ValueError: If ``flatten`` does not accept the keys.
    """
    with replacing(file) as temporary:
        write_tensors(_own_memory(flatten(tensors)), temporary, metadata or {})


def checksum_of(tensors: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a block's tensors: their names, dtypes, shapes and bytes, whatever their order.

    Example:
        >>> one, same, other = ({"x": np.array([0, last], np.uint8)} for last in (1, 1, 2))
        >>> checksum_of(one) == checksum_of(same), checksum_of(one) == checksum_of(other)
        (True, False)
    """
    checksum = 0
    for name, tensor in sorted(flatten(tensors).items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        array: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(array, checksum)
    return checksum


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``file`` at the end, or is deleted after an error."""
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_block(file: Path | str, max_bytes: int) -> Block:
    """Read a block that ``write_block`` has written, with sorted keys; other content is refused and never executed.

    The file is not memory-mapped, so it may be deleted or truncated by another process at any time.

    Args:
        file: File to read; a symbolic link is refused.
        max_bytes: Maximum size of the file in bytes; a larger one is not read.

    Raises:
        Refusal: If there is no file (404), it is not a regular file (403), too large (413), or not a complete block
            (422).
    """
    return block_of(_read(file, max_bytes), os.path.basename(file))


def bytes_of(flat: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the content of the file that ``write_block`` writes for tensors, given as ``flatten`` returns them."""
    return bytes(save(_own_memory(flat), dict(metadata)))


def write_bytes(file: Path, content: bytes) -> None:
    """Write the content of a block into a file, which appears when it is complete.

    Raises:
        OSError: If there is no space or writing fails; then the file does not exist, or is the old one.
    """
    with replacing(file) as temporary:
        temporary.write_bytes(content)


def block_of(content: bytes, name: str) -> Block:
    """Return the block that ``bytes_of`` has made into ``content``, with sorted keys.

    Args:
        content: Content of a file.
        name: Name for the error.

    Raises:
        Refusal: If the content is not that of a complete block (422).
    """
    try:
        flat = sorted(load(content).items())  # safetensors returns them in a different order each time
        tensors = unflatten(dict(flat))
        header = content[8 : 8 + int.from_bytes(content[:8], "little")]
        has_metadata = b'"__metadata__"' in header and b'"__metadata__":{}' not in header  # data have none
        metadata = json.loads(header).get("__metadata__") if has_metadata else None
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise Refusal(422, f"{name} is truncated or not a block of tensors: {str(error)[:200]}") from error
    return Block(tensors, metadata or {})


def _check_depth(flat: Mapping[str, Any]) -> None:
    for name in flat:
        if name.count("/") >= MAX_DEPTH:
            raise ValueError(f"names must have at most {MAX_DEPTH} keys joined by '/', got {name[:100]!r}")


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value, order="C")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _own_memory(flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with copies of those that share memory, such as tied weights, which safetensors refuses."""
    seen: set[int] = set()
    own = {}
    for name, tensor in flat.items():
        memory = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone(memory_format=torch.contiguous_format) if memory in seen else tensor.contiguous()
        seen.add(memory)
    return own


def _read(file: Path | str, max_bytes: int) -> bytes:
    """Return the bytes of a regular file; type and size are checked after opening, so that it cannot be exchanged."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refusal(404, f"there is no {os.path.basename(file)}") from error
    except OSError as error:  # ELOOP for a symbolic link
        raise Refusal(403, f"{os.path.basename(file)} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(403, f"{os.path.basename(file)} is not a regular file")
        if status.st_size > max_bytes:
            raise Refusal(413, f"{os.path.basename(file)} must have at most {max_bytes} bytes, got {status.st_size}")
        with os.fdopen(opened, "rb", closefd=False) as stream:
            return stream.read(status.st_size)
    finally:
        os.close(opened)
