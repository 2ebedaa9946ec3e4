"""What a policy sees of a round of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor

Batch = dict[str, Any]


class Round(Protocol):
    """What ``training_step`` learns from: minibatches, and a way to tell their priorities back."""

    @property
    def drawn(self) -> Batch | None:
        """All minibatches, leading axes (U, B), if they are drawn already."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """Yield minibatches."""
        ...

    def prepare(self, function: Callable[[Batch], Batch]) -> None:
        """Let ``function`` add to all minibatches at once, leading axes (U, B), if they are drawn already."""
        ...

    def update_priority(self, batch: Batch, priority: Tensor) -> None:
        """Take the priorities, shape (B,), of a minibatch that was just learned from."""
        ...
