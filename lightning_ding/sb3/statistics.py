"""The statistics of ``VecNormalize``, of ``vecnormalize.pkl``, which is a pickle.

It is not unpickled. :func:`read_pickle` interprets its opcodes as data: a class becomes its dotted name, and an object
a record of the name, the arguments and the state. Nothing is imported, looked up or called, whatever the file names.
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding.config import require

VEC_NORMALIZE = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
MOMENTS = "stable_baselines3.common.running_mean_std.RunningMeanStd"
CLIP, EPSILON = 10.0, 1e-8  # the only clipping, and the number added to variances, here
UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""Errors that reading a forged or damaged file raises."""


class Statistics(NamedTuple):
    """Running moments, as tensors that ``Normaliser.load_state_dict`` takes."""

    tensors: dict[str, Tensor]
    """``count``, ``mean`` and ``m2`` by name: ``obs.mean``, of a dict ``obs:entry.mean``, and ``reward.mean``."""
    shapes: dict[str, tuple[int, ...]]
    """Shapes of the normalised observations, by the name of the entry, "" for one that is no dict."""


def read_statistics(path: str | Path, name_of: Any) -> Statistics:
    """Return the statistics of a file that ``VecNormalize.save`` wrote.

    Args:
        path: The file.
        name_of: Function from the keys that lead to an entry of the observation to the name of its statistics.

    Raises:
        ValueError: If it is no such file, or normalises in a way that there is not here.
    """
    saved = _saved_wrapper(path)
    for key, value in (("clip_obs", CLIP), ("clip_reward", CLIP)):
        used = saved.get("norm_obs" if key == "clip_obs" else "norm_reward")
        require(not used or saved[key] == value, f"{key} of {str(path)!r}", str(value), _shown(saved[key]))
    epsilon = saved.get("epsilon", EPSILON)
    fits = isinstance(epsilon, (int, float)) and 0 <= epsilon <= 1
    require(fits, f"epsilon of {str(path)!r}", "a number in [0, 1]", _shown(epsilon))
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    if saved.get("norm_obs", True):
        found = saved["obs_rms"]
        for key, moments in found.items() if isinstance(found, dict) else [("", found)]:
            require(isinstance(key, str), f"an entry of obs_rms of {str(path)!r}", "a text", _shown(key))
            name = name_of((key,) if key else ())
            tensors |= _moments(moments, name, epsilon, path)
            shapes[key] = tuple(tensors[f"{name}.mean"].shape)
    if saved.get("norm_reward", True):
        tensors |= _moments(saved["ret_rms"], "reward", epsilon, path)
    return Statistics(tensors, shapes)


def _saved_wrapper(path: str | Path) -> Mapping[str, Any]:
    try:
        content = read_pickle(Path(path).read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise ValueError(f"vecnormalize must be a file of VecNormalize.save, got {str(path)!r}: {error}") from error
    got = content.name if isinstance(content, Record) else type(content).__name__
    if got != VEC_NORMALIZE or not isinstance(content.state, dict):
        raise ValueError(f"vecnormalize must be a file of VecNormalize.save, got {str(path)!r}, which holds a {got}")
    needed = {"obs_rms", "ret_rms", "clip_obs", "clip_reward"}
    missing = sorted(needed - content.state.keys())
    keys = [_shown(key) for key in content.state][:5]
    require(not missing, f"the content of {str(path)!r}", f"one with {', '.join(missing)}", keys)
    return content.state


def _moments(moments: Any, name: str, epsilon: float, path: str | Path) -> dict[str, Tensor]:
    """Return the moments by name; an ``epsilon`` other than here becomes part of the variance."""
    is_known = isinstance(moments, Record) and moments.name == MOMENTS and isinstance(moments.state, dict)
    require(is_known, f"the statistics {name!r} of {str(path)!r}", "a RunningMeanStd", _shown(moments))
    try:
        mean, variance, count = (_as_array(moments.state[key]) for key in ("mean", "var", "count"))
    except UNREADABLE as error:
        raise ValueError(f"the statistics {name!r} of {str(path)!r} cannot be read: {error}") from error
    fits = mean.shape == variance.shape and count.shape == () and np.isfinite([mean, variance]).all() and count > 0
    require(bool(fits), f"the statistics {name!r} of {str(path)!r}", "finite, of one shape", moments)
    count = np.maximum(count, 1.0)  # that of no numbers is 0.0001 there, with a variance of 1
    m2 = (variance + (epsilon - EPSILON)) * count
    parts = {"count": count, "mean": mean, "m2": m2}
    return {f"{name}.{part}": torch.from_numpy(np.array(array, np.float64)) for part, array in parts.items()}


# ---------------------------------------------------------------------- arrays in a pickle


def _as_array(value: Any) -> NDArray[Any]:
    """Return a number, or an array of numbers, of the record of a pickle.

    Raises:
        ValueError: If it is anything else.
    """
    if isinstance(value, (int, float)):
        return np.array(float(value))
    if not isinstance(value, Record):
        raise ValueError(f"a {type(value).__name__} is no number")
    kind, arguments = value.name.rpartition(".")[2], value.arguments
    if kind == "scalar":
        return np.frombuffer(_bytes(arguments[1]), _dtype(arguments[0]), 1).reshape(())
    if kind == "_frombuffer":  # of protocol 5
        return _shaped(arguments[0], arguments[1], arguments[2], arguments[3] == "F")
    if kind == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        _, shape, dtype, is_fortran, content = value.state
        return _shaped(content, dtype, shape, bool(is_fortran))
    raise ValueError(f"{value.name} is no array of numpy")


def _shaped(content: Any, dtype: Any, shape: tuple[int, ...], is_fortran: bool) -> NDArray[Any]:
    return np.frombuffer(_bytes(content), _dtype(dtype)).reshape(shape, order="F" if is_fortran else "C")


def _bytes(content: Any) -> bytes:
    if isinstance(content, Record) and content.name.rpartition(".")[2] == "encode":  # bytes in protocol 2
        content = content.arguments[0].encode("latin1")
    if not isinstance(content, (bytes, bytearray)):
        raise ValueError("an array of objects is no array of numbers")
    return bytes(content)


def _dtype(record: Any) -> np.dtype[Any]:
    code = record.arguments[0]
    if record.name != "numpy.dtype" or code not in ("f2", "f4", "f8", "i4", "i8", "b1"):
        raise ValueError(f"{_shown(code)!r} is no type of numbers")
    is_big = isinstance(record.state, tuple) and record.state[1] == ">"
    return np.dtype(str(code)).newbyteorder(">" if is_big else "<")


# ---------------------------------------------------------------------- pickles as data


class Record:
    """An object of a pickle: the dotted name of what would make it, the arguments, and the state that it would get."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __repr__(self) -> str:
        """Return the name, which is all that errors show."""
        return f"<{self.name}>"


class _Name(NamedTuple):
    """The dotted name of a class or function."""

    path: str


def _shown(value: Any) -> Any:
    """Return a value as errors show it: the repr of containers that hold each other takes exponential time."""
    if isinstance(value, str):
        return value[:60]
    is_small = isinstance(value, int) and value.bit_length() <= 64
    return value if is_small or isinstance(value, (float, NoneType, Record)) else Record(type(value).__name__, ())


MARK: Any = object()
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
LITERALS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
)
"""Opcodes whose argument is the value."""


def read_pickle(content: bytes) -> Any:
    """Return the content of a pickle as numbers, texts, bytes, containers and :class:`Record`, running none of it.

    Raises:
        ValueError: If it is no pickle, or has an opcode that pickles of numbers do not need.
    """
    reader = _Reader()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "STOP":
            return reader.stack.pop()
        reader.step(opcode.name, argument)
    raise ValueError("the pickle has no end")


class _Reader:
    """The stack and the memo of a pickle that is read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Carry out an opcode."""
        stack = self.stack
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[int(argument)])
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("TUPLE", "LIST", "DICT", "FROZENSET"):
            items = self._since_mark()
            made: dict[str, Any] = {"TUPLE": tuple, "LIST": list, "FROZENSET": tuple, "DICT": _pairs}
            stack.append(made[name](items))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            items = [stack.pop()] if name == "APPEND" else self._since_mark()
            if isinstance(stack[-1], list):  # what other objects hold is not needed
                stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._since_mark()
            if isinstance(stack[-1], dict):
                stack[-1].update(_pairs(items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = argument.split(" ") if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
            stack.append(_Name(".".join(parts)))
        else:
            self._make(name)

    def _make(self, name: str) -> None:
        """Record a call, a new object or the state of one."""
        stack = self.stack
        if name in ("REDUCE", "NEWOBJ"):
            made_by, arguments = stack.pop(-2), stack.pop()
            path = made_by.path if isinstance(made_by, _Name) else f"a {type(made_by).__name__}"
            stack.append(Record(path, tuple(arguments)))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Record):
                stack[-1].state = state
        else:
            raise ValueError(f"the opcode {name} is in no pickle of numbers")

    def _since_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not MARK:
            items.append(item)
        return items[::-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    others = [key for key in items[::2] if not isinstance(key, (str, bytes, int, float, NoneType))]
    if others:  # the hash of tuples that hold each other takes exponential time, or all of the stack
        raise ValueError(f"a key of a dict is a {type(others[0]).__name__}")
    return dict(zip(items[::2], items[1::2], strict=True))
