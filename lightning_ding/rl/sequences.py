"""Converting the rows of a rollout to time-major tables and back.

Shapes: S rows, T steps, N envs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """The layout of the rows of a rollout in a table with a row for each step and a column for each env.

    Columns that are shorter than the longest one are padded at their end. ``ended`` is true at the last row of each
    column, so a backward recursion does not carry padding over into the data.

    Args:
        valid: Whether a cell holds a row of the rollout, shape (T, N); false in the padding.
        ended: Whether the cell is the last of an episode or of its column, shape (T, N); true in the padding.
        index: Row number of each cell, shape (T, N); None if the rows are in the order of the cells.
        cell: Cell number of each row, in row-major order, shape (S,); None if ``index`` is None.
    """

    valid: Tensor
    ended: Tensor
    index: Tensor | None = None
    cell: Tensor | None = None

    def lay_out(self, x: Tensor) -> Tensor:
        """Return rows, shape (S, ...), as a table, shape (T, N, ...); padding repeats the last row of its column.

        The table shares the memory of ``x`` if ``index`` is None.
        """
        return x.unflatten(0, tuple(self.valid.shape)) if self.index is None else x[self.index]

    def flatten(self, x: Tensor) -> Tensor:
        """Return a table, shape (T, N, ...), as rows, shape (S, ...), in their original order, without the padding."""
        rows = x.flatten(0, 1)
        return rows if self.cell is None else rows[self.cell]

    def cut(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the columns cut into sequences of equal length, for networks with memory.

        Args:
            length: Steps of a sequence L, >= 1.

        Returns:
            The row number of each step, shape (L, M) for M sequences, and whether it is a row of the rollout, shape
            (L, M). After its end a sequence repeats its last row. A column of T rows gives ceil(T / L) sequences.
        """
        steps, columns = self.valid.shape
        cells = torch.arange(steps * columns, device=self.valid.device).view(steps, columns)
        table = cells if self.index is None else self.index
        missing = -steps % length
        table = torch.cat([table, table[-1:].expand(missing, columns)])
        valid = torch.cat([self.valid, torch.zeros_like(self.valid[:1]).expand(missing, columns)])
        cut = [x.view(-1, length, columns).transpose(0, 1).flatten(1) for x in (table, valid)]
        return cut[0][:, cut[1][0]], cut[1][:, cut[1][0]]


def time_major(env_id: Tensor, episode_id: Tensor, num_envs: int | None = None) -> Sequences:
    """Return the layout of rows; those of one env are in chronological order, different envs may be interleaved.

    Args:
        env_id: Number of the env of each row, shape (S,), S >= 1. An env may have several consecutive episodes.
        episode_id: Number of the episode of each row, shape (S,); it changes with each reset of the env.
        num_envs: Number of envs N if it is known that the ids are 0, 1, ..., N - 1, repeated; None reads the ids, which
            waits for a device.

    Returns:
        The layout, with columns in ascending order of ``env_id``.

    Example:
        >>> sequences = time_major(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]))
        >>> sequences.lay_out(torch.tensor([10, 11, 20])).tolist()
        [[10, 20], [11, 20]]
        >>> sequences.ended.tolist()
        [[False, True], [True, True]]
    """
    if num_envs is not None or _lies_in_order(env_id):
        num_envs = int(env_id[-1]) + 1 if num_envs is None else num_envs
        valid = torch.ones(len(env_id) // num_envs, num_envs, dtype=torch.bool, device=env_id.device)
        return Sequences(valid, _ends(episode_id.view(valid.shape), valid))
    _, column, counts = torch.unique(env_id, return_inverse=True, return_counts=True)
    num_envs, num_steps = len(counts), int(counts.max())
    ends = counts.cumsum(0)
    order = column.argsort(stable=True)  # rows of the first env in chronological order, then of the second, and so on
    sorted_column = column[order]
    steps = torch.arange(len(order), device=order.device) - (ends - counts)[sorted_column]
    sorted_cell = steps * num_envs + sorted_column
    index = order[ends - 1].repeat(num_steps)  # initially each cell holds the last row of its column
    index[sorted_cell] = order
    index = index.view(num_steps, num_envs)
    cell = torch.empty_like(order)
    cell[order] = sorted_cell
    valid = torch.arange(num_steps, device=order.device).unsqueeze(1) < counts
    return Sequences(valid, _ends(episode_id[index], valid), index, cell)


def _lies_in_order(env_id: Tensor) -> bool:
    """Return whether the ids are 0, 1, ..., N - 1, repeated."""
    num_envs = int(env_id[-1]) + 1
    if num_envs < 1 or len(env_id) % num_envs:
        return False
    return bool((env_id.view(-1, num_envs) == torch.arange(num_envs, device=env_id.device)).all())


def _ends(episode: Tensor, valid: Tensor) -> Tensor:
    """Return whether a cell is the last of its episode or of its column, shape (T, N)."""
    ended = torch.ones_like(valid)
    ended[:-1] = (episode[:-1] != episode[1:]) | ~valid[1:]
    return ended
