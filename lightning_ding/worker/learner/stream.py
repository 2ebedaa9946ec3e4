"""The batches of a learner's run in a Trainer.

Shapes: B transitions of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested

NextBatch = Callable[[], Any]
TakePriority = Callable[[Any, Tensor], None]


def on_device(data: Any, device: torch.device | str) -> Any:
    """Return a batch on a device: as it is on the CPU, and otherwise as a nested dict with leading axis B."""
    if torch.device(device).type == "cpu":
        return data
    stacked = data if isinstance(data, Mapping) else nested.stack(data)
    return nested.to(nested.to_tensor(stacked), device)


class LearnerRound:
    """A round of one minibatch, whose priorities go to the learner.

    Args:
        batch: A nested dict with leading axis B, or a list of B transitions.
        take_priority: Called with the batch and its priorities.
    """

    def __init__(self, batch: Any, take_priority: TakePriority) -> None:
        self._given = batch
        self._batch = batch
        self._take_priority = take_priority

    def __iter__(self) -> Iterator[Any]:
        """Yield the minibatch."""
        yield self._batch

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Do nothing: there is nothing to gain for one minibatch."""

    def update_priority(self, batch: Any, priority: Tensor) -> None:
        """Hand the priorities, shape (B,), to the learner."""
        self._take_priority(self._given, priority)

    def to(self, device: torch.device, non_blocking: bool = False) -> LearnerRound:
        """Put the minibatch on a device (called by Lightning)."""
        self._batch = on_device(self._given, device)
        return self


class LearnerStream:
    """Yields rounds until there were enough updates, the batches end, or the learner is closed.

    It has a length, so that Lightning does not fetch a batch before the one before was learned from, and making an
    iterator does nothing, so it may be done any number of times.

    Args:
        next_batch: Returns a batch; raises ``StopIteration`` when there are no more.
        is_over: Whether there were enough updates.
        length: Rounds at most, >= 1.
        take_priority: See :class:`LearnerRound`.
    """

    def __init__(
        self, next_batch: NextBatch, is_over: Callable[[], bool], length: int, take_priority: TakePriority
    ) -> None:
        self._next_batch = next_batch
        self._is_over = is_over
        self._length = length
        self._take_priority = take_priority

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[LearnerRound]:
        while not self._is_over():
            try:
                batch = self._next_batch()
            except StopIteration:
                return
            yield LearnerRound(batch, self._take_priority)


def next_batch_of(source: Any, batch_size: Callable[[], int]) -> NextBatch:
    """Return a function that returns the next batch of a source.

    Args:
        source: Called with the batch size, or iterated over.
        batch_size: Asked before each call.

    Raises:
        TypeError: If ``source`` is neither callable nor iterable.
    """
    if callable(source):
        return lambda: source(batch_size())
    try:
        iterator = iter(source)
    except TypeError as error:
        raise TypeError(
            f"get_data must be a function of the batch size, or an iterable, got {type(source).__name__}"
        ) from error
    return lambda: next(iterator)
