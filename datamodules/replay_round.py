"""The minibatches of a round of training, sampled from a replay buffer.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.datamodules.demonstrations import MixedBuffer
from lightning_ding.worker import IBuffer


class ReplayRound:
    """The U minibatches of a round, sampled from a buffer.

    Without priorities, all minibatches are sampled and gathered in one operation. With priorities, each minibatch is
    sampled when it is requested, after the priorities of the previous one were updated.

    Args:
        buffer: Buffer to sample from.
        num_batches: U, >= 1.
        batch_size: B, >= 1.
        train_iter: Updates made before the round.
        sample_kwargs: Further arguments of the buffer's ``sample``, such as ``n_step``.
    """

    def __init__(
        self,
        buffer: IBuffer | MixedBuffer,
        num_batches: int,
        batch_size: int,
        train_iter: int,
        sample_kwargs: Mapping[str, Any],
    ) -> None:
        self.num_batches = num_batches
        self._buffer = buffer
        self._batch_size = batch_size
        self._train_iter = train_iter
        self._sample_kwargs = sample_kwargs
        self._device: torch.device | None = None
        self._data: dict[str, Any] | None = None
        if not buffer.is_prioritised:
            self._data = buffer.sample(
                batch_size, cur_learner_iter=train_iter, num_batches=num_batches, **sample_kwargs
            )

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        if self._data is not None:
            yield from nested.unbind(self._data)  # type: ignore[misc]
            return
        for number in range(self.num_batches):
            drawn = self._buffer.sample(
                self._batch_size, cur_learner_iter=self._train_iter + number, **self._sample_kwargs
            )
            yield drawn if self._device is None else nested.to(drawn, self._device)  # type: ignore[misc]

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All minibatches, leading axes (U, B); None if they are sampled one by one."""
        return self._data

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Apply ``function`` to all minibatches at once, leading axes (U, B), unless they are sampled one by one."""
        if self._data is not None:
            self._data = function(self._data)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Update the priorities, shape (B,), of a minibatch in the buffer."""
        keys = ("replay_unique_id", "replay_buffer_idx")
        self._buffer.update({"priority": priority, **{key: batch[key] for key in keys if key in batch}})

    def to(self, device: torch.device, non_blocking: bool = False) -> ReplayRound:
        """Move the minibatches to a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._device = torch.device(device)
            if self._data is not None:
                self._data = nested.to(self._data, device, non_blocking)  # type: ignore[assignment]
        return self
