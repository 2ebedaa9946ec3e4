"""Where the arrays of a buffer lie: in memory, or in files that the operating system pages in and out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Memory:
    """Makes arrays whose pages cost nothing until they are written.

    Args:
        folder: Where files are made for arrays larger than memory; None for memory. A file has no name any more as soon
            as it is open, so its space is free again when the process ends, however it ends.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of zeros."""
        if self.folder is None or 0 in shape:
            return np.zeros(shape, dtype)
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder, prefix="buffer-") as file:
            array: NDArray[Any] = np.memmap(file, dtype=dtype, mode="w+", shape=shape)
        return array

    def grown(self, array: NDArray[Any], length: int) -> NDArray[Any]:
        """Return a copy of ``array`` with a longer leading axis."""
        longer = self.zeros((length, *array.shape[1:]), array.dtype)
        longer[: len(array)] = array
        return longer
