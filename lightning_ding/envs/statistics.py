"""Mean and variance of a stream of numbers, exact over batches and over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

Array = NDArray[Any]
Moments = tuple[int, Array, Array]
"""Count, mean, and sum of squared distances from the mean."""


class RunningStatistics:
    """Count, mean and variance of all rows seen, by Chan's formula for two sets (Chan et al. 1979, eq. 2.1).

    Beside them stands what is new since the last merge, so that ranks tell each other only that, and nothing is counted
    twice.

    Args:
        shape: Shape of a row.

    Example:
        >>> statistics = RunningStatistics(())
        >>> statistics.update(np.array([1.0, 2.0, 6.0]))
        >>> statistics.count, float(statistics.mean), round(float(statistics.variance), 4)
        (3, 3.0, 4.6667)
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self.count, self.mean, self.m2 = _nothing(shape)
        self._merged = self._new = _nothing(shape)

    @property
    def variance(self) -> Array:
        """Population variance, float64, in the shape of a row; 1 as long as nothing was seen."""
        return self.m2 / self.count if self.count else np.ones(self.shape)

    def update(self, rows: Array) -> None:
        """Count rows, shape (N, *shape); N may be 0."""
        if not len(rows):
            return
        mean = rows.mean(0, dtype=np.float64)
        batch = len(rows), mean, np.square(rows - mean).sum(0)
        self.count, self.mean, self.m2 = _combine((self.count, self.mean, self.m2), batch)
        self._new = _combine(self._new, batch)

    def merge_over_ranks(self, device: torch.device | str = "cpu") -> None:
        """Take in what is new on every rank; all ranks end with the same bits.

        All ranks must call it. Without a process group, or with one rank, it changes no number.

        Args:
            device: Where the backend communicates.
        """
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            count, mean, m2 = self._new
            table = torch.zeros(dist.get_world_size(), 1 + 2 * mean.size, dtype=torch.float64)
            table[dist.get_rank()] = torch.from_numpy(np.concatenate([[count], mean.ravel(), m2.ravel()]))
            table = table.to(device)
            dist.all_reduce(table)  # the other rows are zeros, so this sum rounds nothing
            total = self._merged
            for row in table.cpu().numpy():  # in the order of the ranks, and so alike on all of them
                mean, m2 = row[1:].reshape(2, *self.shape)
                total = _combine(total, (int(row[0]), mean, m2))
            self.count, self.mean, self.m2 = total
        self._merged, self._new = (self.count, self.mean, self.m2), _nothing(self.shape)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins; on several ranks they should be merged first."""
        return {"count": self.count, "mean": torch.tensor(self.mean), "m2": torch.tensor(self.m2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned, which all ranks have seen then.

        Raises:
            ValueError: If it is of rows of another shape.
        """
        mean, m2 = state["mean"].numpy().copy(), state["m2"].numpy().copy()
        if mean.shape != self.shape:
            raise ValueError(f"mean must be of shape {self.shape}, got {mean.shape}")
        self.count, self.mean, self.m2 = int(state["count"]), mean, m2
        self._merged, self._new = (self.count, self.mean, self.m2), _nothing(self.shape)


def _nothing(shape: tuple[int, ...]) -> Moments:
    return 0, np.zeros(shape), np.zeros(shape)


def _combine(first: Moments, second: Moments) -> Moments:
    count = first[0] + second[0]
    if not count:
        return first
    step = second[1] - first[1]
    mean = first[1] + step * (second[0] / count)
    return count, mean, first[2] + second[2] + step**2 * (first[0] * second[0] / count)
