"""Write tensors to a safetensors file without a copy of them in memory.

``safetensors.torch.save_file`` (0.8) makes the bytes of all tensors before it writes the first of them, which takes
their size in memory a second time. The format is simple enough to be written as a stream: the length of a header, the
header in JSON, the bytes of one tensor after another (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
}
ALIGNMENT = 8  # bytes
CHUNK = 4 << 20  # bytes


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write CPU tensors, of which no more than some megabytes are copied at a time.

    Args:
        tensors: By name; any shape, contiguous or not.
        file: Written over if it is there.
        metadata: Kept beside them.

    Raises:
        ValueError: If a tensor's type is none that the format knows.
        OSError: If there is no room, which is seen before the first byte, or writing fails.
    """
    require(sys.byteorder == "little", "byte order", "little", sys.byteorder)
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header = _header(ordered, metadata)
    size = len(header) + sum(tensor.nbytes for _, tensor in ordered)
    if shutil.disk_usage(file.parent).free < size:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes are needed", str(file))
    with file.open("wb") as opened:
        opened.write(header)
        for _, tensor in ordered:
            for piece in _pieces(tensor):
                opened.write(piece)


def _header(ordered: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, tensor in ordered:
        require(tensor.dtype in DTYPES, f"type of {name!r}", f"one of {list(DTYPES.values())}", tensor.dtype)
        end = begin + tensor.nbytes
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Yield a tensor's bytes, in the order of its elements."""
    if tensor.numel() == 0:
        return
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    length = max(1, CHUNK // (rows.nbytes // len(rows)))
    for part in rows.split(length):
        yield part.contiguous().reshape(-1).view(torch.uint8).numpy().data
