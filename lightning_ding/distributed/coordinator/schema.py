"""The form of a block of transitions, and ids that distinguish the collectors of one buffer.

Shapes: K transitions of a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.distributed.transport import Refusal

COLUMNS = ("obs", "action", "reward", "terminated", "env_id", "episode_id", "policy_version")
"""Columns that every block has; the first block may add others."""
EPISODES = 2**32  # number of episode ids of one attempt at a task
NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of the columns with ids."""
_OTHERS = (torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64)
DTYPES = frozenset((*NUMBERS, *_OTHERS))
"""Types of the columns that every buffer accepts."""


def check_rows(tensors: dict[str, Any], envs: int, more: tuple[str, ...] = ()) -> int:
    """Check a block and return its number of transitions, K.

    Args:
        tensors: Tensors of the block, leading axis K.
        envs: Number of env ids of a collector; ``env_id`` must be in [0, envs).
        more: Columns that the policy needs in addition to ``COLUMNS``.

    Raises:
        Refusal: 422, if a column is missing, has an invalid type or length, or has non-finite values or values out of
            range.
    """
    if missing := [name for name in (*COLUMNS, *more) if name not in tensors]:
        raise Refusal(422, f"transitions need {missing}")
    leaves = nested.leaves(tensors)
    if other := {str(leaf.dtype) for leaf in leaves if leaf.dtype not in DTYPES}:
        raise Refusal(422, f"columns must have a type that buffers accept, got {sorted(other)}")
    sizes = {len(leaf) if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or min(sizes) <= 0:
        raise Refusal(422, f"all columns must have one leading axis >= 1, got {sorted(sizes)}")
    size = sizes.pop()
    for name, limit in (("env_id", envs), ("episode_id", EPISODES), ("policy_version", None)):
        _check_ids(name, tensors[name], size, limit)
    for name, column in tensors.items():
        if not all(np.isfinite(leaf.numpy()).all() for leaf in nested.leaves(column) if leaf.is_floating_point()):
            raise Refusal(422, f"{name} must be finite")
    return size


def renumber(tensors: dict[str, Any], slot: int, run_number: int, envs: int) -> dict[str, Any]:
    """Return a block whose env and episode ids are unique among all collectors.

    Args:
        tensors: Tensors of a block that ``check_rows`` accepts.
        slot: Index of the collecting task, from 0.
        run_number: Number of the attempt at the task.
        envs: Number of env ids of a collector.
    """
    env_id = tensors["env_id"].long() + slot * envs
    return {**tensors, "env_id": env_id, "episode_id": tensors["episode_id"].long() + run_number * EPISODES}


def episode_of_attempt(local: int, run_number: int) -> int:
    """Return the id that an episode of an attempt has in the buffer."""
    return run_number * EPISODES + local


def _check_ids(name: str, column: Any, size: int, limit: int | None) -> None:
    """Check that a column has an integer in [0, limit) for each transition; None means no limit."""
    if not isinstance(column, Tensor) or column.shape != (size,) or column.dtype not in NUMBERS:
        raise Refusal(422, f"{name} must be an integer for each transition")
    ids = column.numpy()
    if ids.min() < 0 or (limit is not None and ids.max() >= limit):
        raise Refusal(422, f"{name} must be in [0, {limit or 'infinity'}), got {ids[:5].tolist()}")
