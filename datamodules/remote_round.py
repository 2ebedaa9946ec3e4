"""What a coordinator answers when a learner asks for data, and the round of minibatches made from it.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require

KEYS = ("replay_unique_id", "replay_buffer_idx")
"""Columns that say which transition of a prioritised buffer a row is."""


@dataclass(frozen=True)
class RemoteData:
    """An answer to a learner that asked for a round."""

    data: dict[str, Any] | None = None
    """All minibatches, leading axes (U, B); None if there is nothing to learn from at the moment."""
    wait: float = 0.0
    """Seconds after which to ask again when there is none."""
    stop: bool = False
    """Whether the run is over."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """``env_step``, ``episode`` and ``sample`` of all collectors together."""
    returns: Sequence[float] = ()
    """Of the episodes that have ended since the last answer."""
    lengths: Sequence[int] = ()
    """Of the same, in env steps."""
    dropped: int = 0
    """Episodes that faults of their envs cut short since the last answer."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Numbers to log, such as ``policy_lag``."""


class RemoteRound:
    """U minibatches that were drawn elsewhere; their priorities are kept until they are sent back.

    All minibatches of a prioritised round were drawn before the first of them is learned from, unlike those of a
    :class:`~lightning_ding.datamodules.round.ReplayRound`.

    Args:
        data: All minibatches, leading axes (U, B).
        num_batches: U, as it was asked for.

    Raises:
        ValueError: If there are more or fewer minibatches.
    """

    def __init__(self, data: dict[str, Any], num_batches: int) -> None:
        got = nested.length(data)
        require(got == num_batches, "minibatches of a round", f"{num_batches}, as asked for", got)
        self.num_batches = num_batches
        self._data = data
        self._is_prioritised = KEYS[0] in data
        self._priorities: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        yield from nested.unbind(self._data)  # type: ignore[misc]

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All minibatches, leading axes (U, B); None if each of them has priorities to tell back."""
        return None if self._is_prioritised else self._data

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Let ``function`` add to all minibatches at once, leading axes (U, B), unless they have priorities."""
        if not self._is_prioritised:
            self._data = function(self._data)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Keep the priorities, shape (B,), of a minibatch that was just learned from."""
        told = {"priority": priority, **{key: batch[key] for key in KEYS if key in batch}}
        self._priorities.append({key: value.detach().cpu() for key, value in told.items()})

    def priorities(self) -> dict[str, Tensor] | None:
        """Return ``priority`` and what says whose they are, of all minibatches one after the other; None for none."""
        if not self._priorities:
            return None
        return {key: torch.cat([one[key].flatten() for one in self._priorities]) for key in self._priorities[0]}

    def to(self, device: torch.device, non_blocking: bool = False) -> RemoteRound:
        """Put the minibatches on a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._data = nested.to(self._data, device, non_blocking)  # type: ignore[assignment]
        return self
