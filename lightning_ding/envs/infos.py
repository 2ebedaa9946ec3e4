"""Joining the infos of separate envs as gymnasium does, but in arrays that hold the values of all envs unchanged.

Gymnasium (1.4) takes the shape and the dtype of an array from the first env. If another env has a value that does not
fit, gymnasium fails, for example for None or a list of legal moves of another length, or changes the value: 2.5 becomes
2 after an integer, and any other number than 0 becomes True after a bool. Here numbers of different types are joined in
an array of a type that holds both, and everything else in an array of objects.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Info = dict[str, Any]
Columns = dict[str, tuple[list[int], Any]]
"""Infos of some envs: for each entry the numbers of the envs that have it, and an array of their values, or the columns
of their dicts."""
KINDS = {float: "f8", np.float64: "f8", np.float32: "f4", bool: "?"}
"""Types of values that a block holds, and the dtypes of their columns."""
PYTHON_NUMBERS = frozenset({bool, int, float})
"""Types of Python's numbers, which are joined as arrays of numbers, as those of numpy are."""
NUMERIC = frozenset("biufc")
"""Kinds of dtypes of numbers."""
FINAL_OBS = "final_obs"
"""Entry whose values stay objects, so that a row is an observation."""


class InfoBlock(NamedTuple):
    """Infos of some envs that all have the same entries, of the types in ``KINDS``: one array for all entries."""

    keys: list[str]
    kinds: list[str]
    """Dtypes of the entries."""
    numbers: list[int]
    """Numbers of the envs."""
    values: NDArray[np.float64]
    """Values, which this type holds unchanged, shape (entries, envs)."""

    def __reduce__(self) -> Any:  # pickling an array takes longer than all the rest of a step's message
        return _block, (self.keys, self.kinds, self.numbers, self.values.tobytes())

    def columns(self) -> Columns:
        """Return the same as columns."""
        rows = zip(self.keys, self.kinds, self.values, strict=True)
        return {key: (self.numbers, values.astype(kind)) for key, kind, values in rows}


def _block(keys: list[str], kinds: list[str], numbers: list[int], data: bytes) -> InfoBlock:
    return InfoBlock(keys, kinds, numbers, np.frombuffer(data).reshape(len(keys), len(numbers)))


def part_of(infos: Mapping[int, Info]) -> Columns | InfoBlock:
    """Return the infos of envs, which are given by the numbers of the envs.

    Raises:
        TypeError: If an entry is a dict in some envs only.
    """
    rest = list(infos.values())
    keys, kinds = list(rest[0]), [KINDS.get(type(value), "") for value in rest[0].values()]
    if not all(kinds) or not kinds:
        return columns_of(infos)
    for info in rest[1:]:
        if list(info) != keys or [KINDS.get(type(value)) for value in info.values()] != kinds:
            return columns_of(infos)
    values = np.array([list(info.values()) for info in rest], dtype=np.float64).T
    return InfoBlock(keys, kinds, list(infos), values)


def columns_of(infos: Mapping[int, Info]) -> Columns:
    """Return the infos of envs, which are given by the numbers of the envs, as columns.

    Raises:
        TypeError: If an entry is a dict in some envs only.
    """
    columns: Columns = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        own = [number for number, info in infos.items() if key in info]
        columns[key] = own, _column(key, own, [infos[number][key] for number in own])
    return columns


def join_infos(parts: Sequence[Columns | InfoBlock], num_envs: int) -> Info:
    """Return the info of a vector env, with a mask of shape (N,) for each entry.

    Args:
        parts: Infos of some envs each; no entry of an env is in two of them.
        num_envs: Number of envs N.

    Raises:
        TypeError: If an entry is a dict in some envs only.

    Example:
        >>> join_infos([columns_of({0: {"lives": 3}, 2: {"lives": 2.5}})], 3)
        {'lives': array([3. , 0. , 2.5]), '_lives': array([ True, False,  True])}
    """
    blocks = [part for part in parts if isinstance(part, InfoBlock)]
    if blocks and len(blocks) == len(parts) and all(block[:2] == blocks[0][:2] for block in blocks):
        return _join_blocks(blocks, num_envs)
    infos: Info = {}
    every = [part.columns() if isinstance(part, InfoBlock) else part for part in parts]
    for key in dict.fromkeys(key for part in every for key in part):
        found = [part[key] for part in every if key in part]
        numbers = found[0][0] if len(found) == 1 else [number for own, _ in found for number in own]
        columns = [column for _, column in found]
        if len(columns) > 1 and any(isinstance(column, dict) for column in columns):
            _check_dicts(key, columns)
        if isinstance(columns[0], dict):
            infos[key] = join_infos(columns, num_envs)
        else:
            column = columns[0] if len(columns) == 1 else _one_after_another(key, numbers, columns)
            infos[key] = _placed(column, numbers, num_envs)
        infos[f"_{key}"] = _placed(np.ones(len(numbers), dtype=bool), numbers, num_envs)
    return infos


def _join_blocks(blocks: Sequence[InfoBlock], num_envs: int) -> Info:
    """Return the info of a vector env from blocks with the same entries."""
    numbers = blocks[0].numbers if len(blocks) == 1 else [number for block in blocks for number in block.numbers]
    values = np.concatenate([block.values for block in blocks], axis=1)
    masks = np.ones(values.shape, dtype=bool)
    if numbers != list(range(num_envs)):
        some, shape = values, (len(values), num_envs)
        values, masks = np.zeros(shape), np.zeros(shape, dtype=bool)
        values[:, numbers], masks[:, numbers] = some, True
    infos: Info = {}
    for key, kind, column, mask in zip(*blocks[0][:2], values, masks, strict=True):
        infos[key], infos[f"_{key}"] = column if kind == "f8" else column.astype(kind), mask
    return infos


def _column(key: str, numbers: list[int], values: list[Any]) -> Any:
    """Return values of envs as columns if they are dicts, and otherwise as an array, which copies arrays."""
    kinds = set() if key == FINAL_OBS else set(map(type, values))
    is_plain = kinds == {dict}
    if is_plain or any(issubclass(kind, dict) for kind in kinds):
        if not is_plain:
            _check_dicts(key, values)
        return columns_of(dict(zip(numbers, values, strict=True)))
    dtype = _dtype_of(values, kinds) if kinds else None
    if dtype is not None:
        try:
            return np.array(values, dtype=dtype)
        except OverflowError:  # an integer of more than 64 bits
            pass
    column = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        column[place] = value
    return column


def _dtype_of(values: list[Any], kinds: set[type]) -> np.dtype[Any] | None:
    """Return a dtype that holds all values, which have these types, unchanged; None if only objects do."""
    if all(kind in PYTHON_NUMBERS or issubclass(kind, np.number) for kind in kinds):
        return np.result_type(*(np.dtype(kind) for kind in kinds))
    return _common_dtype({(one.dtype, one.shape) for one in values}) if kinds == {np.ndarray} else None


def _common_dtype(forms: set[tuple[np.dtype[Any], tuple[int, ...]]]) -> np.dtype[Any] | None:
    """Return a dtype that holds arrays of these dtypes and shapes, or None."""
    dtypes = {dtype for dtype, _ in forms}
    fits = len(dtypes) == 1 or {one.kind for one in dtypes} <= NUMERIC
    return np.result_type(*dtypes) if fits and len({shape for _, shape in forms}) == 1 else None


def frozen(info: Info) -> Info:
    """Return a copy of an info: later changes of its arrays and dicts do not reach it, those of other objects do."""
    copy = dict(info)
    for key, value in info.items():
        if isinstance(value, np.ndarray):
            copy[key] = value.copy()
        elif isinstance(value, dict):
            copy[key] = frozen(value)
    return copy


def _check_dicts(key: str, values: Sequence[Any]) -> None:
    other = [value for value in values if not isinstance(value, dict)]
    if other:
        raise TypeError(f"the info {key!r} must be a dict in all envs or in none, got {other[0]!r} in one of them")


def _one_after_another(key: str, numbers: list[int], columns: Sequence[NDArray[Any]]) -> Any:
    if _common_dtype({(column.dtype, column.shape[1:]) for column in columns}) is not None:
        return np.concatenate(columns)
    values = [one for column in columns for one in (column.tolist() if column.ndim == 1 else column)]
    return _column(key, numbers, values)


def _placed(column: NDArray[Any], numbers: list[int], num_envs: int) -> NDArray[Any]:
    """Return an array of all envs with the values of some of them, and zeros or None for the others."""
    if len(numbers) == num_envs and numbers == list(range(num_envs)):
        return column
    shape = (num_envs, *column.shape[1:])
    placed = np.full(shape, None, dtype=object) if column.dtype == object else np.zeros(shape, dtype=column.dtype)
    placed[numbers] = column
    return placed
