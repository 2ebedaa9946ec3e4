"""Players of tic-tac-toe, as opponents of a ``GameEnv``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Board = tuple[int, ...]  # 1 for the player whose turn it is, -1 for the other one, 0 for an empty square


@functools.cache
def value(board: Board) -> int:
    """Return the result of a game between two perfect players, for the one whose turn it is: 1, 0 or -1.

    Example:
        >>> value((0,) * 9), value((1, 1, 0, -1, -1, 0, 0, 0, 0))
        (0, 1)
    """
    if any(sum(board[square] for square in line) == -3 for line in LINES):
        return -1
    return max((-value(after) for after in _after(board).values()), default=0)


def perfect(obs: Any, rng: np.random.Generator) -> int:
    """Return one of the best moves, which never loses.

    Example:
        >>> mine, other = np.zeros((2, 9), np.int8)
        >>> mine[[0, 1]] = other[[3, 4]] = 1
        >>> perfect({"observation": np.stack([mine, other], -1).reshape(3, 3, 2)}, np.random.default_rng(0))
        2
    """
    planes = obs["observation"].reshape(9, 2).astype(int)
    values = {move: -value(after) for move, after in _after(tuple((planes[:, 0] - planes[:, 1]).tolist())).items()}
    best = [move for move, result in values.items() if result == max(values.values())]
    return best[rng.integers(len(best))]


def first(obs: Any, rng: np.random.Generator) -> int:
    """Return the first legal move."""
    return int(obs["action_mask"].argmax())


def _after(board: Board) -> dict[int, Board]:
    """Return the board after each legal move, seen by the other player."""
    empty = [square for square in range(9) if not board[square]]
    return {move: tuple(-1 if square == move else -mark for square, mark in enumerate(board)) for move in empty}
