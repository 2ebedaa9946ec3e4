"""A round of minibatches, what ``training_step`` learns from.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.worker import IBuffer


class ReplayRound:
    """U minibatches from a buffer.

    A uniform round is drawn and gathered in one operation. A prioritised round draws each minibatch when it is asked
    for, so after the priorities of the one before are in.

    Args:
        buffer: Where the minibatches come from.
        num_batches: U.
        batch_size: B.
        train_iter: Updates done before the round.
        sample_kwargs: Further arguments of the buffer's ``sample``, such as ``n_step``.
    """

    def __init__(
        self, buffer: IBuffer, num_batches: int, batch_size: int, train_iter: int, sample_kwargs: Mapping[str, Any]
    ) -> None:
        self.num_batches = num_batches
        self._buffer = buffer
        self._batch_size = batch_size
        self._train_iter = train_iter
        self._sample_kwargs = sample_kwargs
        self._device: torch.device | None = None
        self._data: dict[str, Any] | None = None
        if not buffer.is_prioritised:
            self._data = buffer.sample(batch_size, train_iter, num_batches=num_batches, **sample_kwargs)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        if self._data is not None:
            yield from nested.unbind(self._data)  # type: ignore[misc]
            return
        for number in range(self.num_batches):
            drawn = self._buffer.sample(self._batch_size, self._train_iter + number, **self._sample_kwargs)
            yield drawn if self._device is None else nested.to(drawn, self._device)  # type: ignore[misc]

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All minibatches, leading axes (U, B), if they are drawn already."""
        return self._data

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Let ``function`` add to all minibatches at once, leading axes (U, B), if they are drawn already."""
        if self._data is not None:
            self._data = function(self._data)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Hand the priorities, shape (B,), of a minibatch back to the buffer."""
        keys = ("replay_unique_id", "replay_buffer_idx")
        self._buffer.update({"priority": priority, **{key: batch[key] for key in keys if key in batch}})

    def to(self, device: torch.device, non_blocking: bool = False) -> ReplayRound:
        """Put the minibatches on a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._device = torch.device(device)
            if self._data is not None:
                self._data = nested.to(self._data, device, non_blocking)  # type: ignore[assignment]
        return self
