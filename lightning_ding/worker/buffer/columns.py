"""The columns of transitions: which there are, their shapes and types, and the storage of an observation's leaf.

An *entry* is the place of one observation. Entry i of the first C belongs to row i of the ring; the others are the
spare slots for next observations.

Shapes: E entries, n of them written or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.worker.buffer.memory import Memory

Rows = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
Parts = tuple[Columns, Columns, Columns, int]
"""Columns, observation leaves and next-observation leaves of a batch, and the size of its leading axis."""
ENDS = ("terminated", "truncated", "done")
"""Entries that mark the last step of an episode; ``done`` does not distinguish the first two."""


def split_columns(data: Mapping[str, Any], keep_double: bool = False) -> tuple[Columns, Columns, Columns]:
    """Return flat columns, observation leaves and next-observation leaves; without both, all are columns.

    Floats are in single precision; observations stay in double precision with ``keep_double``.

    Raises:
        ValueError: If a key contains a "/", which joins the keys of nested entries.
    """
    parts: tuple[Columns, Columns, Columns] = {}, {}, {}
    places = {"obs": 1, "next_obs": 2} if "obs" in data and "next_obs" in data else {}
    for name, leaf in nested.flatten(data).items():
        place = places.get(name.partition("/")[0], 0)
        if type(leaf) is not np.ndarray or leaf.dtype.char in nested.OTHER_FLOATS:  # most stay as they are
            leaf = nested.to_array(leaf, keep_double and place > 0)
        parts[place][name.removeprefix("next_") if place else name] = leaf
    return parts


def _axes(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the flat name and the number of axes of each entry; ``next_obs`` has the names of ``obs``."""
    for key, value in data.items():
        name = path + ("obs" if key == "next_obs" and not path else key)
        if type(value) is not np.ndarray and isinstance(value, Mapping):  # the second test is slow
            yield from _axes(value, f"{name}/")
        else:
            yield name, np.ndim(value)


def has_ends(names: Iterable[str]) -> bool:
    """Return whether entries of these names mark the ends of episodes."""
    return {"terminated", "truncated"} <= set(names) or "done" in names


def ended(columns: Mapping[str, NDArray[Any]], rows: Any) -> NDArray[np.bool_]:
    """Return whether transitions are the last ones of their episodes.

    Args:
        columns: Columns with at least one entry of ``ENDS``.
        rows: Rows of the transitions, of any shape, which is that of the result.
    """
    marks = [columns[name][rows] for name in ENDS if name in columns]
    over: NDArray[np.bool_] = marks[0].astype(bool, copy=False)
    for mark in marks[1:]:
        over = over | mark.astype(bool, copy=False)
    return over


class Schema:
    """Columns, shapes and types of the first batch, which every later one has to fit.

    Args:
        columns: Columns of the first batch.
        obs: Observation leaves of the first batch.

    Raises:
        ValueError: If an entry does not hold numbers, or ``env_id`` does not hold integers.
    """

    def __init__(self, columns: Columns, obs: Columns) -> None:
        for name, array in (columns | obs).items():
            require(array.dtype.kind in "biufc", name, "numbers", str(array.dtype))
        if "env_id" in columns:
            shape, dtype = columns["env_id"].shape[1:], columns["env_id"].dtype
            require(dtype.kind in "iu" and not shape, "env_id", "an integer for each transition", f"{dtype} {shape}")
        self._columns = {name: (array.shape[1:], array.dtype) for name, array in columns.items()}
        self._obs = {name: (array.shape[1:], array.dtype) for name, array in obs.items()}
        usual = {**self._columns, **self._obs} | {f"next_{name}": known for name, known in self._obs.items()}
        self._usual = usual if "/" not in "".join(usual) else None  # None if there are nested entries
        self._size = -1  # the leading axis of the last batch that was like the first one
        self._shapes: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = []  # of its entries

    def split_usual(self, data: Any) -> Parts | None:
        """Return the parts of a batch that holds the same entries as the first one, all of them arrays of its types.

        It is None for anything else, which may still fit, and if there are nested entries.
        """
        if type(data) is not dict or self._usual is None or len(data) != len(self._usual):
            return None
        first = next(iter(data.values()))
        if type(first) is not np.ndarray or not first.ndim:
            return None
        size = first.shape[0]
        if size != self._size:
            self._shapes = [(name, (size, *tail), dtype) for name, (tail, dtype) in self._usual.items()]
            self._size = size
        for name, shape, dtype in self._shapes:
            array = data.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return None
        columns = dict(data)
        if not self._obs:
            return columns, {}, {}, size
        return columns, {"obs": columns.pop("obs")}, {"obs": columns.pop("next_obs")}, size

    def has_leading_axis(self, data: Mapping[str, Any]) -> bool:
        """Return whether a mapping holds columns of this schema, not one transition; :meth:`check` checks the rest."""
        for name, value in data.items():
            if self._usual is None or type(value) is not np.ndarray or name not in self._usual:
                break
            return value.ndim != len(self._usual[name][0])
        for name, axes in _axes(data):
            known = self._columns.get(name) or self._obs.get(name)
            if known is not None:
                return axes != len(known[0])
        return True

    def check(self, columns: Columns, obs: Columns, next_obs: Columns) -> int:
        """Return the size of the leading axis of a batch, after checking its keys, shapes and types.

        Raises:
            ValueError: If an entry does not fit; the message names the entry.
        """
        sizes = [array.shape[0] if array.ndim else -1 for part in (columns, obs, next_obs) for array in part.values()]
        if not sizes:
            raise ValueError("a transition must hold at least one entry, got none")
        if sizes[0] < 0 or sizes.count(sizes[0]) < len(sizes):
            named = dict(zip([*columns, *obs, *next_obs], sizes, strict=True))
            raise ValueError(f"every entry of a batch must have the same leading axis, got the sizes {named}")
        for kind, here, new in (("", self._columns, columns), ("", self._obs, obs), ("next_", self._obs, next_obs)):
            if here.keys() != new.keys():
                expected, got = (sorted(kind + name for name in names) for names in (here, new))
                raise ValueError(f"a transition must hold {expected}, got {got}")
            for name, (shape, dtype) in here.items():
                array = new[name]
                if array.shape[1:] != shape:
                    raise ValueError(f"{kind}{name} must have the shape {shape}, got {array.shape[1:]}")
                if array.dtype is not dtype and not fits(array, dtype):
                    raise ValueError(f"{kind}{name} must be of a type that fits {dtype}, got {array.dtype}")
        return sizes[0]


def fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a column of this type can hold the values: floats may be rounded, integers must be exact."""
    if array.dtype == dtype:
        return True
    if dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        return bool(bounds.min <= int(array.min()) and int(array.max()) <= bounds.max)
    return np.can_cast(array.dtype, dtype, "same_kind")


class ObsColumn:
    """Observations of one leaf by entry. Every entry holds its observation.

    Args:
        entries: Number of entries E, twice the rows.
        like: A batch of observations.
        memory: Allocator of the arrays.
    """

    def __init__(self, entries: int, like: NDArray[Any], memory: Memory) -> None:
        self._values = memory.zeros((entries, *like.shape[1:]), like.dtype)

    def write_rows(self, where: slice | Rows, rows: Rows, obs: NDArray[Any], known: Rows, slots: Rows) -> None:
        """Store the observations of new rows.

        Args:
            where: The rows, as a slice if possible.
            rows: The rows, shape (n,).
            obs: Observations of the rows, leading axis n.
            known: Indices of the observations that are already stored as next observation of an earlier row.
            slots: Entries that hold these observations; they are free after the call.
        """
        self._values[where] = obs

    def write_slots(self, slots: Rows, next_obs: NDArray[Any], rows: Rows) -> None:
        """Store the next observations of ``rows`` in ``slots``, all of shape (n, ...)."""
        self._values[slots] = next_obs

    def read(self, entries: Rows) -> NDArray[Any]:
        """Return a copy of the observations, leading axes those of ``entries``."""
        return self._values.take(entries, axis=0)

    def release(self, entries: Rows) -> None:
        """Release entries that will not be read again; those of this class are simply overwritten."""

    def nbytes(self, rows: int, slots: int) -> int:
        """Return the bytes that hold observations if ``rows`` rows and ``slots`` spare slots are in use."""
        return self._values[: rows + slots].nbytes

    def state(self, rows: int, slots: slice) -> Columns:
        """Return the arrays that are in use."""
        return {"row": self._values[:rows], "slot": self._values[slots]}

    def load(self, state: Columns, rows: int, slots: slice) -> None:
        """Restore the state that ``state`` returned."""
        self._values[:rows] = state["row"]
        self._values[slots] = state["slot"]
