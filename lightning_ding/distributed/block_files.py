"""Blocks of tensors as safetensors files, which appear when they are complete and are read without trusting them."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from lightning_ding import nested
from lightning_ding.distributed.transport import Block, Refusal
from lightning_ding.worker.buffer.files import write_tensors

MAX_DEPTH = 16
"""Maximum number of nested dicts in a block."""
MAX_AXES = 64
"""Maximum number of axes of a tensor, as in torch and NumPy; multiplying the sizes of a million would take minutes."""
HEADER_BYTES = 16_000_000
"""Maximum size of the header of a file."""
LARGE = 64_000_000
"""Bytes of a file from which on only one at a time is read."""
TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "C64": torch.complex64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}
"""Types of tensors by their names in the header."""
_large = threading.Lock()


class Leaf(NamedTuple):
    """The place of a tensor in the data of a file, according to the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


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

    The data are read if the header describes exactly the size of the file, so a sparse file needs no memory. They are
    read once, and those of large files one after the other. The file is not memory-mapped, so it may be deleted or
    truncated by another process at any time.

    Args:
        file: File to read; a symbolic link is refused.
        max_bytes: Maximum size of the file in bytes; a larger one is not read.

    Raises:
        Refusal: If there is no file (404), it is not a regular file (403), too large (413), or not a complete block
            (422).
    """
    name = os.path.basename(file)
    with _opened(file, max_bytes) as (stream, size), _refusing(name):
        header = _read_header(stream, size)
        leaves = _leaves(header, size - stream.tell())
        with _large if size > LARGE else nullcontext():
            data: Any = np.empty(size - stream.tell(), np.uint8)
            filled = 0
            while count := stream.readinto(memoryview(data)[filled:]):
                filled += count
        _require(filled == len(data), "it was truncated")
        return _block(header, leaves, data)


def form_of(file: Path | str, max_bytes: int) -> dict[str, Leaf]:
    """Return the forms of the tensors of a block by their flat names, without reading its data.

    Raises:
        Refusal: As :func:`read_block`.
    """
    with _opened(file, max_bytes) as (stream, size), _refusing(os.path.basename(file)):
        return _leaves(_read_header(stream, size), size - stream.tell())


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
    with _refusing(name):
        stream = io.BytesIO(content)
        header = _read_header(stream, len(content))
        data = np.frombuffer(content, np.uint8, offset=stream.tell()).copy()
        return _block(header, _leaves(header, len(data)), data)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError, RecursionError, OverflowError) as error:
        raise Refusal(422, f"{name} is truncated or not a block of tensors: {str(error)[:200]}") from error


def _require(good: bool, reason: str) -> None:
    if not good:
        raise ValueError(reason)


def _read_header(stream: BinaryIO, size: int) -> dict[str, Any]:
    """Return the header at the beginning of a file, after which the data follow; raise a ``ValueError`` without one."""
    length = int.from_bytes(stream.read(8), "little")
    _require(size >= 8 and length <= min(size - 8, HEADER_BYTES), "it has no header")
    header = json.loads(stream.read(length))
    _require(isinstance(header, dict), "the header must be an object")
    return dict(header)


def _leaves(header: Mapping[str, Any], size: int) -> dict[str, Leaf]:
    """Return the places of all tensors, sorted by name; raise an error if they do not fill the data without gaps."""
    leaves, filled = {}, 0
    for name, entry in sorted(header.items()):
        if name != "__metadata__":
            shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
            leaves[name] = leaf = Leaf(TYPES[entry["dtype"]], shape, begin, end)
            _require(len(shape) <= MAX_AXES, f"{name} must have at most {MAX_AXES} axes")
            if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
                raise ValueError(f"{name} must have a shape and offsets, got {entry}")
            if math.prod(shape) * leaf.dtype.itemsize != end - begin:
                raise ValueError(f"{name} does not have the size of its shape, got {entry}")
    for begin, end in sorted([leaf[2:] for leaf in leaves.values()]):
        _require(begin == filled, "tensors must follow one another")
        filled = end
    _require(filled == size, "the header must describe the size of the file")
    return leaves


def _block(header: Mapping[str, Any], leaves: Mapping[str, Leaf], data: Any) -> Block:
    """Return the tensors, which share the memory of the data, as a nested dict, and the metadata."""
    flat = {}
    for name, (dtype, shape, begin, end) in leaves.items():
        if begin == end:
            flat[name] = torch.empty(shape, dtype=dtype)
            continue
        aligned, begin = (data, begin) if begin % dtype.itemsize == 0 else (data[begin:end].copy(), 0)
        flat[name] = torch.frombuffer(aligned, dtype=dtype, count=math.prod(shape), offset=begin).view(shape)
    metadata = header.get("__metadata__") or {}
    _require(
        isinstance(metadata, dict) and all(isinstance(one, str) for one in metadata.values()), "malformed metadata"
    )
    return Block(unflatten(flat), metadata)


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


@contextmanager
def _opened(file: Path | str, max_bytes: int) -> Iterator[tuple[Any, int]]:
    """Yield a regular file and its size, which are checked after opening, so that it cannot be exchanged."""
    name = os.path.basename(file)
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refusal(404, f"there is no {name}") from error
    except OSError as error:  # ELOOP for a symbolic link
        raise Refusal(403, f"{name} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(403, f"{name} is not a regular file")
        if status.st_size > max_bytes:
            raise Refusal(413, f"{name} must have at most {max_bytes} bytes, got {status.st_size}")
        with os.fdopen(opened, "rb", closefd=False) as stream:
            yield stream, status.st_size
    finally:
        os.close(opened)
