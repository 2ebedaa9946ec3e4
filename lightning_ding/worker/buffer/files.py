"""Files of tensors: the state of a buffer, and blocks of a distributed run.

``safetensors.torch.save_file`` writes from the tensors' own memory since version 0.8: measured, 1 MB more for a buffer
of 1 GB. Versions up to 0.7 first copy all of it. When the disk is full it raises an error that is not an ``OSError``.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write CPU tensors for ``safetensors.safe_open``; only one that is not contiguous is copied.

    Args:
        tensors: Tensors by name.
        file: Path of the file, which is overwritten if it exists.
        metadata: Strings that the file also holds.

    Raises:
        OSError: If there is not enough space, which is checked before the first byte, or writing fails.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    if shutil.disk_usage(file.parent).free < size:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes are needed", str(file))
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(file), dict(metadata))
    except SafetensorError as error:
        if "I/O error" not in str(error):
            raise
        raise OSError(f"{file}: {error}") from error


def read_tensors(file: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the strings that :func:`write_tensors` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        SafetensorError: If it is another file.
    """
    with safe_open(str(file), framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        return tensors, opened.metadata() or {}
