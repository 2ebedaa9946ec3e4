"""The form of a block of transitions, and ids that distinguish the collectors of one buffer.

Shapes: K transitions of a block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.distributed.transport import Refusal
from lightning_ding.worker.buffer.columns import fits

COLUMNS = ("obs", "action", "reward", "terminated", "env_id", "episode_id", "policy_version")
"""Columns that every block has; the others are those that the learner announces, or else those of the first block."""
EPISODES = 2**32  # number of episode ids of one attempt at a task
IDS = ("env_id", "episode_id", "policy_version")
"""Columns with ids, which are checked against the task instead."""
NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of the columns with ids."""
_OTHERS = (torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64)
DTYPES = frozenset((*NUMBERS, *_OTHERS))
"""Types of the columns that every buffer accepts."""


@dataclass(frozen=True)
class Column:
    """The form of a column, a leaf of a block."""

    type: str
    """Name of its type, such as ``"float32"``."""
    shape: tuple[int, ...]
    """Shape of the value of one transition."""
    least: tuple[int, ...] = ()
    """Smallest allowed value of each number of a transition, or one for all of them; empty for no limit."""
    largest: tuple[int, ...] = ()
    """Largest allowed value, in the same form."""

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        found: torch.dtype = getattr(torch, self.type)
        return found

    def check(self, name: str, leaf: Tensor) -> Tensor:
        """Return a column of a block in the type of this one, after checking its shape, type and values.

        Args:
            name: Name of the column, for messages.
            leaf: The column of a block, leading axis K.

        Raises:
            Refusal: 422, if it does not fit.
        """
        shape, values = tuple(leaf.shape[1:]), leaf.numpy()
        if shape != self.shape:
            raise Refusal(422, f"{name} must have the shape {self.shape} of the learner's, got {shape}")
        if not fits(values, np.dtype(self.type)):
            raise Refusal(422, f"{name} must have a type that fits the learner's {self.type}, got {values.dtype}")
        rows = values.reshape(len(values), math.prod(shape))
        is_outside = (rows < self.least).any() if self.least else False
        is_outside |= (rows > self.largest).any() if self.largest else False
        if is_outside:
            limits = f"[{list(self.least)}, {list(self.largest)}]"
            raise Refusal(422, f"{name} must be in {limits}, the learner's space, got {rows[:5].tolist()}")
        return leaf.to(self.dtype)


@dataclass(frozen=True)
class Announced:
    """The columns that a learner learns from; blocks are held against them, the first one too."""

    columns: Mapping[str, Column]
    """Columns by their flat names, such as ``"obs/image"``."""
    is_whole: bool
    """Whether blocks have these columns and no others, except the ids of ``COLUMNS``."""

    def check(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return a block with the announced types, after checking names, shapes, types and values.

        Args:
            tensors: Tensors of a block that ``check_rows`` accepts.

        Raises:
            Refusal: 422, if the block has other columns.
        """
        try:
            leaves = nested.flatten(tensors)
        except ValueError as error:
            raise Refusal(422, str(error)) from error
        surplus = leaves.keys() - self.columns.keys() - set(IDS) if self.is_whole else set()
        missing = self.columns.keys() - leaves.keys()
        if missing or surplus:
            found = f"{sorted(surplus)} in addition, {sorted(missing)} missing"
            raise Refusal(422, f"transitions must have the columns that the learner has announced, got {found}")
        checked = {name: column.check(name, leaves[name]) for name, column in self.columns.items()}
        return nested.unflatten({**leaves, **checked})

    def misfit(self, other: Announced) -> str | None:
        """Return why blocks with other columns do not fit; None if they do, as far as values do not matter."""
        none = {name: torch.empty((0, *one.shape), dtype=one.dtype) for name, one in other.columns.items()}
        try:
            self.check(nested.unflatten(none))
        except Refusal as refusal:
            return refusal.reason
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the columns in the form of a message, see ``messages.read_columns``."""
        columns: dict[str, Any] = {}
        for name, one in self.columns.items():
            limits = {"least": list(one.least), "largest": list(one.largest)}
            columns[name] = {"type": one.type, "shape": list(one.shape), **limits}
        return {"columns": columns, "is_whole": self.is_whole}


def described(tensors: Mapping[str, Any]) -> Announced:
    """Return the columns of a block, except the ids."""
    leaves = {name: leaf for name, leaf in nested.flatten(tensors).items() if name not in IDS}
    return Announced({name: Column(name_of(leaf.dtype), tuple(leaf.shape[1:])) for name, leaf in leaves.items()}, True)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type in messages, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


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


def _check_ids(name: str, column: Any, size: int, limit: int | None) -> None:
    """Check that a column has an integer in [0, limit) for each transition; None means no limit."""
    if not isinstance(column, Tensor) or column.shape != (size,) or column.dtype not in NUMBERS:
        raise Refusal(422, f"{name} must be an integer for each transition")
    ids = column.numpy()
    if ids.min() < 0 or (limit is not None and ids.max() >= limit):
        raise Refusal(422, f"{name} must be in [0, {limit or 'infinity'}), got {ids[:5].tolist()}")
