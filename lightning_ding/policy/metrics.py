"""Means of what an update reports, without a host transfer for each update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class MeanMetrics:
    """Keeps detached tensors by name and averages them when asked.

    Keeping a reference costs a list append; the arithmetic and the one transfer to the host wait for ``flush``.

    Example:
        >>> metrics = MeanMetrics()
        >>> metrics.add({"loss": torch.tensor(1.0)})
        >>> metrics.add({"loss": torch.tensor(3.0)})
        >>> metrics.flush()
        {'loss': 2.0}
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[Tensor]] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Keep one value of each name: a scalar, or a tensor whose mean counts."""
        for name, value in values.items():
            self._kept.setdefault(name, []).append(value)

    def flush(self) -> dict[str, float]:
        """Return the mean of each name since the last flush, and forget the values."""
        kept, self._kept = self._kept, {}
        if not kept:
            return {}
        means = torch.stack(
            [torch.cat([value.reshape(-1) for value in values]).float().mean() for values in kept.values()]
        )
        return dict(zip(kept, means.tolist(), strict=True))
