"""The minibatches of a round of training, sampled from a replay buffer.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.utils.ranks import on_any_rank
from lightning_ding.worker import IBuffer, NotEnoughError

if TYPE_CHECKING:
    from lightning_ding.datamodules.demonstrations import MixedBuffer

logger = logging.getLogger(__name__)


class ReplayRound:
    """The U minibatches of a round, sampled from a buffer.

    Without priorities, all minibatches are sampled and gathered in one operation. With priorities, each minibatch is
    sampled when it is requested, after the priorities of the previous one were updated. If the buffer then has not
    enough transitions left, because of its limits on their use or age, the round ends early, on all ranks at once.

    Args:
        buffer: Buffer to sample from.
        num_batches: U, >= 1.
        batch_size: B, >= 1.
        train_iter: Updates made before the round.
        sample_kwargs: Further arguments of the buffer's ``sample``, such as ``n_step``.

    Raises:
        NotEnoughError: If there are too few transitions for the first minibatch, in a buffer with limits on any rank.
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
        self.buffer = buffer
        """The buffer."""
        self._batch_size = batch_size
        self._train_iter = train_iter
        self._sample_kwargs = sample_kwargs
        self._device: torch.device | None = None
        self.drawn: dict[str, Any] | None = None
        """All minibatches, leading axes (U, B); None if they are sampled one by one."""
        self._first: dict[str, Any] | None = None  # of a buffer with limits, which may not have it
        if buffer.is_prioritised and buffer.runs_out:
            self._first = self._draw_if_enough(0)
            if self._first is None:
                raise NotEnoughError("a rank has too few transitions left for a minibatch")
        if not buffer.is_prioritised:
            self.drawn = buffer.sample(
                batch_size, cur_learner_iter=train_iter, num_batches=num_batches, **sample_kwargs
            )

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        if self.drawn is not None:
            yield from nested.unbind(self.drawn)  # type: ignore[misc]
            return
        for number in range(self.num_batches):
            drawn, self._first = self._first, None
            drawn = self._draw_if_enough(number) if drawn is None else drawn
            if drawn is None:
                text = "the replay buffer has enough transitions for %d of %d minibatches of a round: collecting again"
                logger.info(text, number, self.num_batches)
                return
            yield drawn if self._device is None else nested.to(drawn, self._device)  # type: ignore[misc]

    def _draw_if_enough(self, number: int) -> dict[str, Any] | None:
        """Return a minibatch; None on every rank if the limits of the buffer of one leave too few transitions."""
        options = {"cur_learner_iter": self._train_iter + number, **self._sample_kwargs}
        if not self.buffer.runs_out:
            drawn: dict[str, Any] = self.buffer.sample(self._batch_size, **options)
            return drawn
        try:
            drawn = self.buffer.sample(self._batch_size, **options)
            is_enough = True
        except NotEnoughError:
            is_enough = False
        return None if on_any_rank(not is_enough) else drawn

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Apply ``function`` to all minibatches at once, leading axes (U, B), unless they are sampled one by one."""
        if self.drawn is not None:
            self.drawn = function(self.drawn)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Update the priorities, shape (B,), of a minibatch in the buffer."""
        keys = ("replay_unique_id", "replay_buffer_idx")
        self.buffer.update({"priority": priority, **{key: batch[key] for key in keys if key in batch}})

    def to(self, device: torch.device, non_blocking: bool = False) -> ReplayRound:
        """Move the minibatches to a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._device = torch.device(device)
            if self.drawn is not None:
                self.drawn = nested.to(self.drawn, device, non_blocking)  # type: ignore[assignment]
        return self
