"""From the rows of a rollout to time-major tables and back.

Shapes: S rows, T steps, N envs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """How the rows of a rollout lie in a table with a column for each env and time running down.

    Columns that are shorter than the longest one are padded at their end. The last row of a column has ``ended``, so
    what a backward recursion finds in the padding never reaches it.

    Args:
        valid: Whether a cell holds a row of its own; false in the padding, shape (T, N).
        ended: Whether the cell is the last of an episode or of its column, shape (T, N); true in the padding.
        index: The row of each cell, shape (T, N); None if the rows lie in the order of the cells already.
        cell: The cell of each row, counted along the lines of the table, shape (S,); None with ``index``.
    """

    valid: Tensor
    ended: Tensor
    index: Tensor | None = None
    cell: Tensor | None = None

    def lay_out(self, x: Tensor) -> Tensor:
        """Return rows, shape (S, ...), as a table, shape (T, N, ...); padding repeats the last row of its column.

        The table shares the memory of ``x`` if the rows lie in its order already.
        """
        return x.unflatten(0, tuple(self.valid.shape)) if self.index is None else x[self.index]

    def flatten(self, x: Tensor) -> Tensor:
        """Return a table, shape (T, N, ...), as rows, shape (S, ...), in their original order, without the padding."""
        rows = x.flatten(0, 1)
        return rows if self.cell is None else rows[self.cell]


def time_major(env_id: Tensor, episode_id: Tensor) -> Sequences:
    """Return how to lay out rows, those of an env in the order of time and those of several in any order.

    Args:
        env_id: The env of each row, shape (S,), S >= 1. An env may have several episodes, one after the other.
        episode_id: The episode of each row, shape (S,), another one after each reset of an env.

    Returns:
        The layout, with columns in ascending order of ``env_id``.

    Example:
        >>> sequences = time_major(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]))
        >>> sequences.lay_out(torch.tensor([10, 11, 20])).tolist()
        [[10, 20], [11, 20]]
        >>> sequences.ended.tolist()
        [[False, True], [True, True]]
    """
    if _lies_in_order(env_id):
        num_envs = int(env_id[-1]) + 1
        valid = torch.ones(len(env_id) // num_envs, num_envs, dtype=torch.bool, device=env_id.device)
        return Sequences(valid, _ends(episode_id.view(valid.shape), valid))
    _, column, counts = torch.unique(env_id, return_inverse=True, return_counts=True)
    num_envs, num_steps = len(counts), int(counts.max())
    ends = counts.cumsum(0)
    order = column.argsort(stable=True)  # rows of the first env, then of the second, each in the order of time
    sorted_column = column[order]
    steps = torch.arange(len(order), device=order.device) - (ends - counts)[sorted_column]
    sorted_cell = steps * num_envs + sorted_column
    index = order[ends - 1].repeat(num_steps)  # every cell the last row of its column, until it gets its own
    index[sorted_cell] = order
    index = index.view(num_steps, num_envs)
    cell = torch.empty_like(order)
    cell[order] = sorted_cell
    valid = torch.arange(num_steps, device=order.device).unsqueeze(1) < counts
    return Sequences(valid, _ends(episode_id[index], valid), index, cell)


def _lies_in_order(env_id: Tensor) -> bool:
    """Return whether the ids are 0, 1, ..., N - 1 again and again."""
    num_envs = int(env_id[-1]) + 1
    if num_envs < 1 or len(env_id) % num_envs:
        return False
    return bool((env_id.view(-1, num_envs) == torch.arange(num_envs, device=env_id.device)).all())


def _ends(episode: Tensor, valid: Tensor) -> Tensor:
    """Return whether a cell is the last of its episode or of its column, shape (T, N)."""
    ended = torch.ones_like(valid)
    ended[:-1] = (episode[:-1] != episode[1:]) | ~valid[1:]
    return ended
