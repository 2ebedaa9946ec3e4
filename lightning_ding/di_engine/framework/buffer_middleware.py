"""DI-engine's middleware of buffers: functions that stand between a ``DequeBuffer`` and its callers.

``buffer.use(fn)`` adds a function of the name of an action (``push``, ``sample``, ``update``, ``delete`` or ``clear``),
the rest of the chain, and the arguments of the action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lightning_ding.config import require

Chain = Callable[..., Any]


class PriorityExperienceReplay:
    """Lets a buffer draw by priority (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    Drawn transitions have their importance weight as ``IS``.

    Args:
        buffer: The buffer that uses it.
        IS_weight: Add the weights.
        priority_power_factor: Exponent alpha of the priorities, in [0, 1].
        IS_weight_power_factor: Exponent beta of the weights at the start, in [0, 1].
        IS_weight_anneal_train_iter: Updates after which beta is 1, >= 1.
    """

    def __init__(
        self,
        buffer: Any,
        IS_weight: bool = True,  # noqa: N803
        priority_power_factor: float = 0.6,
        IS_weight_power_factor: float = 0.4,  # noqa: N803
        IS_weight_anneal_train_iter: int = int(1e5),  # noqa: N803
    ) -> None:
        self._buffer, self._has_weights = buffer, IS_weight
        self._alpha, self._beta = priority_power_factor, IS_weight_power_factor
        self._step = (1 - IS_weight_power_factor) / IS_weight_anneal_train_iter
        self._mass = np.zeros(buffer.size)  # priority^alpha of the entry whose number has this remainder
        self._largest = 1.0

    def __call__(self, action: str, chain: Chain, *args: Any, **kwargs: Any) -> Any:
        """Do an action of the buffer."""
        known: dict[str, Chain] = {
            "push": self._push,
            "sample": self._sample,
            "update": self._update,
            "delete": self._delete,
        }
        if action == "clear":
            self._mass[:] = 0
        return known[action](chain, *args, **kwargs) if action in known else chain(*args, **kwargs)

    def _push(self, chain: Chain, data: Any, meta: Any = None) -> Any:
        meta = dict(meta or {})
        found = meta.get("priority")
        meta["priority"] = self._largest if found is None else float(found)
        entry = chain(data, meta)
        self._set(entry.index, meta["priority"])
        return entry

    def _sample(self, chain: Chain, size: int | None = None, indices: Any = None, **kwargs: Any) -> Any:
        if indices is not None or kwargs.get("groupby") is not None:
            return chain(size, indices, **kwargs)
        require(bool(size) and bool(self._mass.any()), "size", ">= 1, with entries in the buffer", size)
        total = self._mass.cumsum()
        drawn = np.searchsorted(total, np.random.random(size or 0) * total[-1], side="right")
        by_place = {int(one.index) % len(self._mass): one for one in self._buffer}
        entries = [by_place[place] for place in drawn.tolist()]
        if not self._has_weights:
            return entries
        weight = (self._mass[drawn] / total[-1] * len(by_place)) ** -self._beta
        weight /= (self._mass[self._mass > 0].min() / total[-1] * len(by_place)) ** -self._beta
        self._beta = min(1.0, self._beta + self._step)
        pairs = zip(entries, weight.tolist(), strict=True)
        return [dataclasses.replace(one, data=type(one.data)({**one.data, "IS": value})) for one, value in pairs]

    def _update(self, chain: Chain, index: str, data: Any = None, meta: Any = None) -> Any:
        found = chain(index, data, meta)
        if found and meta and meta.get("priority") is not None:
            self._set(index, float(meta["priority"]))
            self._largest = max(self._largest, float(meta["priority"]))
        return found

    def _delete(self, chain: Chain, indices: str | Sequence[str]) -> Any:
        for index in [indices] if isinstance(indices, str) else indices:
            self._mass[int(index) % len(self._mass)] = 0
        return chain(indices)

    def _set(self, index: str, priority: float) -> None:
        require(priority >= 0 and np.isfinite(priority), "priority", "a finite number >= 0", priority)
        self._mass[int(index) % len(self._mass)] = max(priority, 1e-6) ** self._alpha


def use_time_check(buffer_: Any, max_use: float = float("inf")) -> Chain:
    """Return a function that removes entries from a buffer that were drawn ``max_use`` times."""

    def check(action: str, chain: Chain, *args: Any, **kwargs: Any) -> Any:
        found = chain(*args, **kwargs)
        if action == "sample":
            for one in _flat(found):
                one.meta["use_count"] = one.meta.get("use_count", 0) + 1
            buffer_.delete([one.index for one in _flat(found) if one.meta["use_count"] >= max_use])
        return found

    return check


def sample_range_view(buffer_: Any, start: int | None = None, end: int | None = None) -> Chain:
    """Return a function that lets a buffer draw from a range of its entries, by age, the oldest first."""

    def view(action: str, chain: Chain, *args: Any, **kwargs: Any) -> Any:
        return chain(*args, **({**kwargs, "sample_range": slice(start, end)} if action == "sample" else kwargs))

    return view


def _flat(entries: Sequence[Any]) -> list[Any]:
    return [entry for one in entries for entry in (one if isinstance(one, list) else [one])]
