"""The memory of a buffer: arrays in memory or in memory-mapped files."""

from __future__ import annotations

import logging
import math
import mmap
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

logger = logging.getLogger(__name__)

OWN_PAGES = 1 << 17
"""Bytes from which an array has separate pages, which the system gets back as soon as the array is gone.

The heap of glibc keeps freed arrays of up to 32 MB: after 12 runs with buffers it held 1.6 GB."""
NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux on x86_64 and aarch64, which mmap does not name before Python 3.13. A plain allocation is
refused if it exceeds the machine's memory, even if only a part of it will ever be written."""


class Memory:
    """Makes arrays whose pages cost nothing until they are written.

    Args:
        folder: Folder of the files that hold arrays larger than memory; None for memory. A file is unlinked as soon as
            it is open, so its space is free again when the process ends, even if it is killed.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of zeros.

        Raises:
            MemoryError: If the operating system does not provide so much address space.
        """
        if self.folder is None or 0 in shape:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            is_linux = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
            try:
                if nbytes < OWN_PAGES or not is_linux:
                    return np.zeros(shape, dtype)
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
                pages: NDArray[Any] = np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype).reshape(shape)
                return pages
            except (MemoryError, OSError) as error:
                needed = f"a full replay buffer needs an array of {nbytes / 1e9:.0f} GB"
                raise MemoryError(f"{needed}: set replay_buffer_size or memmap_dir") from error
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder, prefix="buffer-") as file:
            array: NDArray[Any] = np.memmap(file, dtype=dtype, mode="w+", shape=shape)
        return array

    def grown(self, array: NDArray[Any], length: int) -> NDArray[Any]:
        """Return a copy of ``array`` with a longer leading axis."""
        longer = self.zeros((length, *array.shape[1:]), array.dtype)
        longer[: len(array)] = array
        return longer

    def warn_if_too_small(self, nbytes: int) -> None:
        """Warn if the arrays take more memory than the machine has once they are full; files do not count.

        Args:
            nbytes: Bytes of all arrays together.
        """
        try:
            here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):  # Windows has no sysconf
            return
        if self.folder is None and nbytes > here:
            logger.warning(
                "a full replay buffer takes %.0f GB and this machine has %.0f GB of memory: set replay_buffer_size, "
                "frame_stack or memmap_dir",
                nbytes / 1e9,
                here / 1e9,
            )
