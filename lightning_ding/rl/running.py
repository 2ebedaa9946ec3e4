"""Mean and standard deviation of everything seen so far.

Shapes: B batch, ``shape`` what one item has. Moments are a count, a mean and m2, the sum of squared distances from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Moments = tuple[Tensor, Tensor, Tensor]


def moments(x: Tensor) -> Moments:
    """Return count (), mean and m2 of items, shape (B, ...), in double precision; no items have a mean of 0."""
    x = x.double()
    count = torch.full((), x.shape[0], dtype=x.dtype, device=x.device)
    mean = x.sum(0) / max(x.shape[0], 1)
    return count, mean, (x - mean).square().sum(0)


def combine_moments(
    count_a: Tensor, mean_a: Tensor, m2_a: Tensor, count_b: Tensor, mean_b: Tensor, m2_b: Tensor
) -> Moments:
    """Return the moments of two sets of items together (Chan et al. 1979, eq. 2.1).

    Args:
        count_a: How many items the first set has.
        mean_a: Their mean.
        m2_a: Their sum of squared distances from it.
        count_b: The same of the second set; either may be empty.
        mean_b: See above.
        m2_b: See above.

    Example:
        >>> count, mean, m2 = combine_moments(*moments(torch.tensor([1.0, 3.0])), *moments(torch.tensor([5.0])))
        >>> count.item(), mean.item(), m2.item()
        (3.0, 3.0, 8.0)
    """
    count = count_a + count_b
    share = count_b / count.clamp(min=1)
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta.square() * count_a * share


class RunningMeanStd(nn.Module):
    """Mean and standard deviation of a stream, in double precision; saved and moved as the buffers of a module are.

    It knows nothing of ranks: under DDP the caller combines the moments of all of them and hands those to ``merge``.

    Args:
        shape: Of one item; () for numbers.

    Example:
        >>> running = RunningMeanStd()
        >>> running.update(torch.tensor([1.0, 3.0]))
        >>> running.update(torch.tensor([5.0, 7.0]))
        >>> running.mean.item(), round(running.std.item() ** 2, 6)
        (4.0, 5.0)
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in items, shape (..., *shape)."""
        self.merge(*moments(x.reshape(-1, *self.mean.shape)))

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Take in items of which only the moments are known."""
        merged = combine_moments(self.count, self.mean, self.m2, count, mean, m2)
        for buffer, new in zip((self.count, self.mean, self.m2), merged, strict=True):
            buffer.copy_(new)

    @property
    def std(self) -> Tensor:
        """Standard deviation (divided by the count), in double precision; 1 where all items were equal or none came."""
        variance = self.m2 / self.count.clamp(min=1)
        return torch.where(variance > 0, variance.sqrt(), 1.0)

    @property
    def root_mean_square(self) -> Tensor:
        """Root of the mean square, in double precision; 1 where nothing but (almost) zeros came."""
        square = self.mean.square() + self.m2 / self.count.clamp(min=1)
        return torch.where(square > 1e-12, square.sqrt(), 1.0)
