"""DI-engine's buffer of ``ding.data``, which stores any objects.

A buffer for the loop of a script that learns from transitions is in :mod:`lightning_ding.di_engine.worker`. Data sets
and the middleware of buffers are in :mod:`lightning_ding.di_engine.framework`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_ding.config import require
from lightning_ding.utils.foreign import attach

_HOMES = {
    **dict.fromkeys(("OfflineDataset", "create_dataset", "offline_data_save_type"), "di_engine.framework.offline"),
    **dict.fromkeys(
        ("PriorityExperienceReplay", "sample_range_view", "use_time_check"), "di_engine.framework.buffer_middleware"
    ),
    **dict.fromkeys(("FileModelLoader", "FileStorageLoader"), "di_engine.framework.task"),
}
__all__ = ["Buffer", "BufferedData", "DequeBuffer", *_HOMES]
_others = attach(__name__, _HOMES)[0]


def __getattr__(name: str) -> Any:
    return _others(name)


def _through_middleware(method: Any) -> Any:
    """Let the middleware of a buffer stand before a method, the first one before the others."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        chain = functools.partial(method, self)
        for one in reversed(self.middleware):
            chain = functools.partial(one, method.__name__, chain)
        return chain(*args, **kwargs)

    return call


@dataclass
class BufferedData:
    """An object of a buffer, its id, and further values, such as a priority."""

    data: Any
    index: str
    meta: dict[str, Any]


class DequeBuffer:
    """Stores the newest objects, and draws them uniformly.

    Args:
        size: Number of objects, >= 1.
        sliced: Let windows of groups start only at multiples of their length, rather than anywhere.

    Example:
        >>> buffer = DequeBuffer(size=2)
        >>> for number in range(3):
        ...     _ = buffer.push(number, {"even": number % 2 == 0})
        >>> sorted(one.data for one in buffer.sample(2)), buffer.count()
        ([1, 2], 2)
    """

    def __init__(self, size: int, sliced: bool = False) -> None:
        require(size >= 1, "size", ">= 1", size)
        self.size, self.sliced = size, sliced
        self.middleware: list[Callable[..., Any]] = []
        self._stored: OrderedDict[str, BufferedData] = OrderedDict()
        self._numbers = itertools.count()

    def use(self, func: Callable[..., Any]) -> DequeBuffer:
        """Add a middleware: a function of an action, the rest of the chain, and the arguments of the action."""
        self.middleware.append(func)
        return self

    def view(self) -> DequeBuffer:
        """Return a buffer of the same entries, to which further middleware can be added."""
        other = copy.copy(self)
        other._stored, other._numbers = self._stored, self._numbers
        return other

    @_through_middleware
    def push(self, data: Any, meta: Mapping[str, Any] | None = None) -> BufferedData:
        """Store an object and return its entry; the oldest one leaves a full buffer."""
        entry = BufferedData(data, str(next(self._numbers)), dict(meta or {}))
        self._stored[entry.index] = entry
        if len(self._stored) > self.size:
            self._stored.popitem(last=False)
        return entry

    @_through_middleware
    def sample(
        self,
        size: int | None = None,
        indices: Sequence[str] | None = None,
        replace: bool = False,
        sample_range: slice | None = None,
        ignore_insufficient: bool = False,
        groupby: str | Callable[[BufferedData], Any] | None = None,
        unroll_len: int | None = None,
    ) -> list[Any]:
        """Return entries.

        Args:
            size: Number of entries, or of groups, >= 1.
            indices: Ids of the entries, in place of ``size``.
            replace: Allow an entry more than once.
            sample_range: Range to draw from, by age, the oldest first; None draws from all.
            ignore_insufficient: Return fewer entries where there are too few, rather than raise.
            groupby: Name of a value of ``meta``, or a function of an entry, by which entries form groups; the result is
                a list of lists then.
            unroll_len: Length of a window that is drawn from each group, only with ``groupby``; None for whole groups.

        Raises:
            ValueError: If there are too few entries, or neither ``size`` nor ``indices`` is given.
            KeyError: If there is no entry of an id.
        """
        require(unroll_len is None or groupby is not None, "unroll_len", "None without groupby", unroll_len)
        if indices is not None:
            return [self._stored[one] for one in indices]
        require(size is not None and size >= 1, "size", ">= 1, without indices", size)
        wanted = size or 0
        among: list[Any] = list(self._stored.values())[sample_range or slice(None)]
        if groupby is not None:
            among = _groups(among, groupby, unroll_len, self.sliced)
        if replace and among:
            return random.choices(among, k=wanted)
        allowed = f"at most {len(among)}, as many as there are"
        require(len(among) >= wanted or ignore_insufficient, "size", allowed, size)
        return random.sample(among, min(wanted, len(among)))

    @_through_middleware
    def update(self, index: str, data: Any = None, meta: Mapping[str, Any] | None = None) -> bool:
        """Replace what is given of an entry, and return whether there is one of this id."""
        entry = self._stored.get(index)
        if entry is None:
            return False
        new_data = entry.data if data is None else data
        self._stored[index] = BufferedData(new_data, index, entry.meta if meta is None else dict(meta))
        return True

    @_through_middleware
    def delete(self, indices: str | Sequence[str]) -> None:
        """Remove the entries of some ids; others are ignored."""
        for one in [indices] if isinstance(indices, str) else indices:
            self._stored.pop(one, None)

    def get(self, idx: int) -> BufferedData:
        """Return an entry by its age, the oldest first."""
        return list(self._stored.values())[idx]

    def count(self) -> int:
        """Return the number of entries."""
        return len(self._stored)

    @_through_middleware
    def clear(self) -> None:
        """Remove all entries."""
        self._stored.clear()

    def __iter__(self) -> Iterator[BufferedData]:
        return iter(list(self._stored.values()))

    def __copy__(self) -> DequeBuffer:
        other = type(self)(self.size, self.sliced)
        other._stored = copy.copy(self._stored)
        other._numbers = copy.copy(self._numbers)
        other.middleware = list(self.middleware)
        return other


Buffer = DequeBuffer


def _groups(
    entries: Sequence[BufferedData],
    groupby: str | Callable[[BufferedData], Any],
    unroll_len: int | None,
    sliced: bool,
) -> list[list[BufferedData]]:
    """Return the entries by groups, or a random window of each group that is long enough."""
    found: dict[Any, list[BufferedData]] = {}
    for one in entries:
        found.setdefault(groupby(one) if callable(groupby) else one.meta.get(groupby), []).append(one)
    if unroll_len is None:
        return list(found.values())
    step = unroll_len if sliced else 1
    long = [one for one in found.values() if len(one) >= unroll_len]
    starts = [random.randrange(0, len(one) - unroll_len + 1, step) for one in long]
    return [one[start : start + unroll_len] for one, start in zip(long, starts, strict=True)]
