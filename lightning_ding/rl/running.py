"""Running mean and standard deviation, and discounted returns of a stream of rewards.

Shapes: S transitions in the order in which they were collected, B batch; items have the shape ``shape``. Moments are a
count, a mean, and m2, the sum of squared deviations from the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Moments = tuple[Tensor, Tensor, Tensor]
Array = TypeVar("Array", Tensor, NDArray[Any])


def moments(x: Tensor) -> Moments:
    """Return count (), mean and m2 of items, shape (B, ...), in double precision; the mean of no items is 0."""
    x = x.double()
    count = torch.full((), x.shape[0], dtype=x.dtype, device=x.device)
    mean = x.sum(0) / max(x.shape[0], 1)
    return count, mean, (x - mean).square().sum(0)


def combine_moments(
    count_a: Array, mean_a: Array, m2_a: Array, count_b: Array, mean_b: Array, m2_b: Array
) -> tuple[Array, Array, Array]:
    """Return the moments of the union of two sets of items (Chan et al. 1979, eq. 2.1).

    Args:
        count_a: Number of items in the first set, a tensor or an array; 0 is allowed.
        mean_a: Mean of the first set.
        m2_a: Sum of squared deviations of the first set from its mean.
        count_b: Number of items in the second set; 0 is allowed.
        mean_b: Mean of the second set.
        m2_b: Sum of squared deviations of the second set from its mean.

    Example:
        >>> count, mean, m2 = combine_moments(*moments(torch.tensor([1.0, 3.0])), *moments(torch.tensor([5.0])))
        >>> count.item(), mean.item(), m2.item()
        (3.0, 3.0, 8.0)
    """
    count = count_a + count_b
    share = count_b / (count + (count == 0))
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share


class RunningMeanStd(nn.Module):
    """Mean and standard deviation of a stream of items, held in double precision in the buffers of a module.

    The module does not communicate: under DDP the caller combines the moments of all ranks and passes them to
    :meth:`merge`.

    Args:
        shape: Shape of an item; () for numbers.

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
        """Add items, shape (..., *shape)."""
        self.merge(*moments(x.reshape(-1, *self.mean.shape)))

    @torch.no_grad()
    def forget(self, kept: float) -> None:
        """Reduce the weight of the items so far to that of ``kept`` items if there are more; nothing else changes.

        Called before each addition of n items, the statistics are averages in which the weight of older items falls
        by a factor of kept / (kept + n) each time, with no bias towards an initial value.
        """
        share = kept / self.count.clamp(min=kept)
        for buffer in (self.count, self.m2):
            buffer.mul_(share)

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Add items by their moments."""
        merged = combine_moments(self.count, self.mean, self.m2, count, mean, m2)
        for buffer, new in zip((self.count, self.mean, self.m2), merged, strict=True):
            buffer.copy_(new)

    @property
    def std(self) -> Tensor:
        """Population standard deviation in double precision; 1 where all items are equal or there are none."""
        variance = self.m2 / self.count.clamp(min=1)
        return torch.where(variance > 0, variance.sqrt(), 1.0)

    @property
    def root_mean_square(self) -> Tensor:
        """Root mean square in double precision; 1 where all items are (almost) 0 or there are none."""
        square = self.mean.square() + self.m2 / self.count.clamp(min=1)
        return torch.where(square > 1e-12, square.sqrt(), 1.0)


class RunningReturns:
    """The discounted return so far of the current episode of each env.

    Example:
        >>> returns = RunningReturns()
        >>> env_id, episode_id = torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0])
        >>> returns.follow(torch.tensor([1.0, 2.0, 4.0]), env_id, episode_id, 0.5)
        tensor([1.0000, 2.0000, 4.5000], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.value: NDArray[np.float64] = np.zeros(0)
        """Return of each env."""
        self.episode: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Id of the episode of each return."""

    def follow(self, reward: Tensor, env_id: Tensor, episode_id: Tensor, discount_factor: float) -> Tensor:
        """Return the discounted return so far at each of S transitions, shape (S,), and keep the last of each env."""
        from lightning_ding.rl.sequences import time_major

        if not len(reward):  # a rank may have no share of a small data set
            return reward.double()
        env_id, episode_id = env_id.long().cpu(), episode_id.long().cpu()
        sequences = time_major(env_id, episode_id)
        columns = (sequences.lay_out(x).numpy() for x in (reward.double().cpu(), episode_id, env_id))
        rewards, episodes, (envs, *_) = columns
        self._make_room(int(envs.max()) + 1)
        value, before, table = self.value[envs], self.episode[envs], np.empty_like(rewards)
        for step, valid in enumerate(sequences.valid.numpy()):  # a step of few envs takes torch five times as long
            so_far = np.where(episodes[step] == before, value, 0.0)  # a product would keep a non-finite value forever
            table[step] = value = np.where(valid, discount_factor * so_far + rewards[step], value)
            before = np.where(valid, episodes[step], before)
        self.value[envs], self.episode[envs] = value, before
        return sequences.flatten(torch.from_numpy(table))

    def _make_room(self, num_envs: int) -> None:
        missing = num_envs - len(self.value)
        if missing > 0:
            self.value = np.append(self.value, np.zeros(missing))
            self.episode = np.append(self.episode, np.full(missing, -1))
