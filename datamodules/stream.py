"""Iterable data sets with a length, over something that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset


class Stream(IterableDataset[Any]):
    """Yields ``length`` items of a producer; every iterator goes on where the producer is.

    The length keeps Lightning from fetching an item before the last one was learned from, and making an iterator does
    nothing, so it may be done any number of times.

    Args:
        produce: Called for each item.
        length: Items of an epoch, >= 1.
    """

    def __init__(self, produce: Callable[[], Any], length: int) -> None:
        self.produce = produce
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            yield self.produce()
