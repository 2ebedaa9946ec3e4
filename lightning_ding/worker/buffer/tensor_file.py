"""Write tensors to a file without a copy of them in memory, and with errors of the disk as ``OSError``.

``safetensors.torch.save_file`` writes from the tensors' own memory since version 0.8: measured, 1 MB more for a buffer
of 1 GB; versions up to 0.7 first copy all of it. Of a disk that takes no more it says so in an error of its own.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write CPU tensors for ``safetensors.safe_open``; only one that is not contiguous is copied.

    Args:
        tensors: By name.
        file: Written over if it is there.
        metadata: Kept beside them.

    Raises:
        OSError: If there is no room, which is seen before the first byte, or writing fails.
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
