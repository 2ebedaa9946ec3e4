"""The form of a transition: which columns it has, and of what shapes and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require

Rows = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
DOUBLE = np.dtype(np.float64)
SCALARS = ("terminated", "truncated", "env_id", "episode_id", "policy_version", "data_id", "priority")
"""Entries that are one number for each transition, as ``reward`` is in columns."""


def take_apart(data: Mapping[str, Any]) -> tuple[Columns, Columns, Columns]:
    """Return flat columns, observation leaves and next-observation leaves; without both, all are columns.

    Raises:
        ValueError: If a name holds a "/", which joins the names of nested entries.
    """
    has_frames = "obs" in data and "next_obs" in data
    columns: Columns = {}
    obs: Columns = {}
    next_obs: Columns = {}
    for key, value in data.items():
        if has_frames and key == "obs":
            _flatten("obs", value, obs)
        elif has_frames and key == "next_obs":
            _flatten("obs", value, next_obs)
        else:
            _flatten(_checked(key), value, columns)
    return columns, obs, next_obs


def put_together(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat names as a nested dict: what ``take_apart`` undid."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        if "/" not in name:
            result[name] = value
            continue
        *path, leaf = name.split("/")
        below = result
        for part in path:
            below = below.setdefault(part, {})
        below[leaf] = value
    return result


def as_columns(data: Any, form: Form | None) -> Mapping[str, Any]:
    """Return what was pushed as columns with a leading axis of transitions.

    One transition is told from several by the form of the earlier ones. Before the first push it is told by the entries
    that are one number for each transition.

    Args:
        data: Columns, one transition, a list of transitions, or a list of columns.
        form: Form of the transitions in the buffer; None before the first push.

    Raises:
        ValueError: If one transition cannot be told from several.
        TypeError: If ``data`` is something else.
    """
    if isinstance(data, Mapping):
        return data if not data or _has_leading_axis(data, form) else nested.apply(_with_leading_axis, dict(data))
    if not len(data):
        return {}
    if not isinstance(data[0], Mapping):
        raise TypeError(f"data must be a mapping or a list of mappings, got a list of {type(data[0]).__name__}")
    if form is None:
        is_of_columns = any(np.ndim(data[0][name]) for name in SCALARS if name in data[0])
    else:
        is_of_columns = form.has_leading_axis(data[0])
    return nested.concatenate(data) if is_of_columns else nested.stack(data)  # type: ignore[return-value]


def _has_leading_axis(data: Mapping[str, Any], form: Form | None) -> bool:
    """Return whether a mapping holds columns, not one transition."""
    if form is not None:
        return form.has_leading_axis(data)
    axes = [np.ndim(data[name]) for name in (*SCALARS, "reward") if name in data]
    if axes:
        return max(axes) > 0
    if all(number for _, number in _axes(data)):
        raise ValueError(
            "data must say whether it is one transition or several, which no entry among "
            f"{(*SCALARS, 'reward')} does before the first push: push a list with a dict for each transition, "
            f"got entries {sorted(data)}"
        )
    return False


def _with_leading_axis(value: Any) -> Any:
    return (value if isinstance(value, Tensor) else np.asarray(value))[None]


def _axes(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the flat name and the number of axes of each entry; ``next_obs`` has the names of ``obs``."""
    for key, value in data.items():
        name = path + ("obs" if key == "next_obs" and not path else key)
        if isinstance(value, Mapping):
            yield from _axes(value, f"{name}/")
        else:
            yield name, np.ndim(value)


class Form:
    """What the first batch looked like, which every later one has to fit.

    Args:
        columns: Of the first batch.
        obs: Its observation leaves.

    Raises:
        ValueError: If something is no number, or ``env_id`` no integer.
    """

    def __init__(self, columns: Columns, obs: Columns) -> None:
        for name, array in (columns | obs).items():
            require(array.dtype.kind in "biufc", name, "numbers", str(array.dtype))
        if "env_id" in columns:
            shape, dtype = columns["env_id"].shape[1:], columns["env_id"].dtype
            require(dtype.kind in "iu" and not shape, "env_id", "an integer for each transition", f"{dtype} {shape}")
        self._columns = {name: (array.shape[1:], array.dtype) for name, array in columns.items()}
        self._obs = {name: (array.shape[1:], array.dtype) for name, array in obs.items()}

    def has_leading_axis(self, data: Mapping[str, Any]) -> bool:
        """Return whether a mapping holds columns of this form, not one transition; :meth:`check` looks at the rest."""
        for name, axes in _axes(data):
            known = self._columns.get(name) or self._obs.get(name)
            if known is not None:
                return axes != len(known[0])
        return True

    def check(self, columns: Columns, obs: Columns, next_obs: Columns) -> int:
        """Return the leading axis of a batch, or raise if its keys, shapes or types do not fit.

        Raises:
            ValueError: If they do not; the message names the entry.
        """
        size = self._size_if_as_first(columns, obs, next_obs)
        if size is not None:
            return size
        size = _check_lengths(columns, obs, next_obs)
        for kind, here, new in (("", self._columns, columns), ("", self._obs, obs), ("next_", self._obs, next_obs)):
            if here.keys() != new.keys():
                expected, got = (sorted(kind + name for name in names) for names in (here, new))
                raise ValueError(f"a transition must hold {expected}, got {got}")
            for name, (shape, dtype) in here.items():
                array = new[name]
                if array.shape[1:] != shape:
                    raise ValueError(f"{kind}{name} must have the shape {shape}, got {array.shape[1:]}")
                if not _fits(array, dtype):
                    raise ValueError(f"{kind}{name} must be of a type that fits {dtype}, got {array.dtype}")
        return size

    def _size_if_as_first(self, columns: Columns, obs: Columns, next_obs: Columns) -> int | None:
        """Return the leading axis of a batch that is, but for it, exactly like the first; else None."""
        size = None
        for here, new in ((self._columns, columns), (self._obs, obs), (self._obs, next_obs)):
            if here.keys() != new.keys():
                return None
            for name, (tail, dtype) in here.items():
                array = new[name]
                if array.dtype is not dtype or array.shape[1:] != tail or not array.ndim:
                    return None
                if size is None:
                    size = array.shape[0]
                elif array.shape[0] != size:
                    return None
        return size


def _check_lengths(*parts: Columns) -> int:
    """Return the leading axis that all entries have.

    Raises:
        ValueError: If there are no entries, or they differ.
    """
    sizes = [array.shape[0] if array.ndim else -1 for part in parts for array in part.values()]
    if not sizes:
        raise ValueError("a transition must hold at least one entry, got none")
    if sizes[0] < 0 or sizes.count(sizes[0]) < len(sizes):
        named = dict(zip([name for part in parts for name in part], sizes, strict=True))
        raise ValueError(f"every entry of a batch must have the same leading axis, got the sizes {named}")
    return sizes[0]


def _checked(key: str) -> str:
    if "/" in key:
        raise ValueError(f"the name of an entry must not contain '/', got {key!r}")
    return key


def _flatten(name: str, value: Any, target: Columns) -> None:
    if type(value) is np.ndarray and value.dtype is not DOUBLE:  # most are
        target[name] = value
        return
    if isinstance(value, dict):
        for key, below in value.items():
            _flatten(f"{name}/{_checked(key)}", below, target)
        return
    array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    target[name] = array.astype(np.float32) if array.dtype == DOUBLE else array


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a column of this type can hold the values: floats rounded, integers as they are."""
    if array.dtype == dtype:
        return True
    if dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        return bool(bounds.min <= int(array.min()) and int(array.max()) <= bounds.max)
    return np.can_cast(array.dtype, dtype, "same_kind")
