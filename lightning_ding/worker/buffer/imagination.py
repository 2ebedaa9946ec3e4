"""A uniform replay buffer that also keeps the transitions that a model of the env made of its observations.

Shapes: N transitions of a model, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer

PREFIX = "imagined/"


class ImaginedTransitions:
    """The transitions of the last calls of :meth:`push`, on the device on which they were made."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # of each call, the oldest first
        self._columns: dict[str, Tensor] = {}
        self.env_step: int | None = None
        """Env steps of the run when the model was last trained; None before."""

    def __len__(self) -> int:
        return sum(self._sizes)

    def push(self, columns: Mapping[str, Tensor], retain: int) -> None:
        """Add transitions, leading axis N, and remove those of all calls but the last ones.

        Args:
            columns: Tensors with leading axis N, by name.
            retain: Number of calls whose transitions are kept, this one included, >= 1.
        """
        left = max(0, len(self._sizes) + 1 - retain)
        first, self._sizes = sum(self._sizes[:left]), [*self._sizes[left:], len(next(iter(columns.values())))]
        old = {name: value[first:] for name, value in self._columns.items()}
        self._columns = {name: torch.cat([old[name].to(one), one]) if old else one for name, one in columns.items()}

    def sample(self, num_batches: int, batch_size: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return uniformly drawn transitions, leading axes (U, B); one may occur several times."""
        rows = torch.from_numpy(rng.integers(len(self), size=(num_batches, batch_size)))
        return {name: value[rows.to(value.device)] for name, value in self._columns.items()}

    def to(self, device: torch.device) -> None:
        """Move the transitions to a device."""
        self._columns = {name: value.to(device) for name, value in self._columns.items()}

    def clear(self) -> None:
        """Remove all transitions, so that the model is trained again before the next minibatch."""
        self._sizes, self._columns, self.env_step = [], {}, None

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the transitions by name, and the counters."""
        return self._columns, {"sizes": self._sizes, "env_step": self.env_step}

    def load(self, columns: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._sizes = list(counters["sizes"])
        self._columns, self.env_step = dict(columns), counters["env_step"]


@BUFFER_REGISTRY.register("imagination")
class ImaginationReplayBuffer(NaiveReplayBuffer):
    """Stores and draws the env's transitions uniformly, and keeps those of a model apart, in ``imagined``.

    A policy with a model adds the latter and mixes them into minibatches. They are saved with the buffer. Buffers
    that are merged lose them.
    """

    def _set_up(self) -> None:
        self.imagined = ImaginedTransitions()
        """The transitions of the model."""

    def clear(self) -> None:
        """Remove all transitions and their schema."""
        super().clear()
        self.imagined.clear()

    def _state(self, copy: bool) -> dict[str, Any]:
        state, (columns, counters) = super()._state(copy), self.imagined.state()
        made = {PREFIX + name: one.cpu().clone() if copy else one.cpu() for name, one in columns.items()}
        return {**state, "tensors": state["tensors"] | made, "counters": state["counters"] | {"imagined": counters}}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state)
        made = {k.removeprefix(PREFIX): one for k, one in state["tensors"].items() if k.startswith(PREFIX)}
        self.imagined.load(made, state["counters"]["imagined"])
