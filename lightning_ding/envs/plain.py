"""Plain data as tensors and builtins, which ``torch.load(weights_only=True)`` reads.

What is not data but constant by nature, such as functions, classes and spaces, is not written; reading takes it from
what is there already. Of random number generators and spaces the state is written, and set in place.
"""

from __future__ import annotations

import enum
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.wrappers.utils import RunningMeanStd

from lightning_ding.envs.constant import CONSTANT, state_within
from lightning_ding.envs.shared import Coded, Met, NotPlainError

MUTABLE = (list, dict, set, deque, np.ndarray, torch.Tensor, np.random.Generator, np.random.RandomState, random.Random)
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
DEPTH = 50


def to_plain(value: Any, path: str = "value", met: Met | None = None, depth: int = 0) -> Coded:
    """Return a copy of plain data as tensors and builtins.

    Args:
        value: None, a bool, number, string, enum member, array, tensor or random number generator, or a list, tuple,
            dict, set, deque or dataclass of these; or something constant by nature.
        path: What it is called in an error.
        met: What was read before and belongs to the same state: what has several names is written once.
        depth: How deep it lies in something else.

    Raises:
        NotPlainError: If it, or something in it, is something else.
    """
    if depth > DEPTH:
        raise NotPlainError(f"{path} is nested deeper than {DEPTH} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if met is not None and (isinstance(value, MUTABLE) or _has_parts(type(value))):
        return met.once(value, path, lambda: _to_plain(value, path, met, depth))
    return _to_plain(value, path, met, depth)


def _to_plain(value: Any, path: str, met: Met | None, depth: int) -> Coded:
    if isinstance(value, (np.ndarray, np.generic)):
        return _array_to_plain(value, path, met, depth)
    if isinstance(value, torch.Tensor) and not value.requires_grad:
        return {"kind": "tensor", "data": value.detach().clone()}
    if type(value) in (bytes, complex):
        return _number_to_plain(value)
    if isinstance(value, Space):
        return _space_to_plain(value, path)
    if isinstance(value, CONSTANT):
        held = state_within(value, () if met is None else met.layers)
        if held is not None:
            raise NotPlainError(f"{path} {held}")
        return {"kind": "constant"}
    return _generator_to_plain(value, path) or _container_to_plain(value, path, met, depth + 1)


def from_plain(coded: Coded, there: Any = None, path: str = "value", made: dict[int, Any] | None = None) -> Any:
    """Return what ``to_plain`` was given, in new memory.

    Args:
        coded: What ``to_plain`` returned.
        there: What is in its place now; what is constant by nature comes from it, and the random number generators and
            spaces in it get their states in place.
        path: What it is called in an error.
        made: What was made before and belongs to the same state, by number.

    Raises:
        NotPlainError: If something constant is missing in ``there``, or a class is not known.
    """
    if not isinstance(coded, dict):
        return coded
    made = {} if made is None else made
    if coded["kind"] == "same":
        if coded["as"] not in made:
            raise NotPlainError(f"{path} was the same as something that is not there now")
        return made[coded["as"]]
    value = _from_plain(coded, there, path, made)
    if "number" in coded:
        made[coded["number"]] = value
    return value


def _from_plain(coded: Coded, there: Any, path: str, made: dict[int, Any]) -> Any:
    kind = coded["kind"]
    if kind == "array":
        return _array_from_plain(coded, path, made)
    if kind == "tensor":
        return coded["data"].clone()
    if kind in ("bytes", "complex"):
        return complex(*coded["data"]) if kind == "complex" else coded["data"].numpy().tobytes()
    if kind == "constant":
        if not isinstance(there, CONSTANT):
            raise NotPlainError(f"{path} was constant, but there is none now, got {type(there).__name__}")
        return there
    if kind == "space":
        return _space_from_plain(coded, there, path)
    if kind in ("Generator", "RandomState", "Random"):
        return _generator_from_plain(coded, there, path)
    return _container_from_plain(coded, there, path, made)


# ---------------------------------------------------------------------- arrays and numbers


def _array_to_plain(value: Any, path: str, met: Met | None, depth: int) -> Coded:
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        raise NotPlainError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")
    array, is_scalar = np.asarray(value), isinstance(value, np.generic)
    if array.dtype == object:
        items = [to_plain(item, f"{path}[{i}]", met, depth + 1) for i, item in enumerate(array.reshape(-1))]
        return {"kind": "array", "dtype": "object", "shape": list(array.shape), "items": items}
    if array.dtype.names is not None:
        raise NotPlainError(f"{path} is an array of records")
    data = torch.from_numpy(np.frombuffer(array.tobytes() or b"\0", dtype=np.uint8).copy())
    coded = {"kind": "array", "dtype": array.dtype.str, "shape": list(array.shape)}
    return {**coded, "data": data, "is_scalar": is_scalar}


def _array_from_plain(coded: Coded, path: str, made: dict[int, Any]) -> Any:
    if coded["dtype"] == "object":
        array = np.empty(int(np.prod(coded["shape"])), dtype=object)
        for place, item in enumerate(coded["items"]):
            array[place] = from_plain(item, None, f"{path}[{place}]", made)
        return array.reshape(coded["shape"])
    size = int(np.prod(coded["shape"]))
    array = np.frombuffer(coded["data"].numpy().tobytes(), dtype=coded["dtype"], count=size)
    array = array.reshape(coded["shape"]).copy()
    return array[()] if coded["is_scalar"] else array


def _number_to_plain(value: bytes | complex) -> Coded:
    if isinstance(value, complex):
        return {"kind": "complex", "data": [value.real, value.imag]}
    data = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0, dtype=torch.uint8)
    return {"kind": "bytes", "data": data}


# ---------------------------------------------------------------------- random number generators, spaces


def _generator_to_plain(value: Any, path: str) -> Coded:
    if isinstance(value, np.random.Generator) and value.bit_generator.state["bit_generator"] in BIT_GENERATORS:
        return {"kind": "Generator", "state": to_plain(value.bit_generator.state, path)}
    if type(value) is np.random.RandomState:
        return {"kind": "RandomState", "state": to_plain(value.get_state(legacy=False), path)}
    if type(value) is random.Random:
        return {"kind": "Random", "state": to_plain(value.getstate(), path)}
    return None


def _generator_from_plain(coded: Coded, there: Any, path: str) -> Any:
    state = from_plain(coded["state"], None, path)
    if coded["kind"] == "Random":
        generator: Any = there if type(there) is random.Random else random.Random()
        generator.setstate(state)
    elif coded["kind"] == "RandomState":
        generator = there if type(there) is np.random.RandomState else np.random.RandomState()
        generator.set_state(state)
    else:
        generator = there
        name = state["bit_generator"]
        if not isinstance(there, np.random.Generator) or there.bit_generator.state["bit_generator"] != name:
            generator = np.random.Generator(getattr(np.random, name)()) if name in BIT_GENERATORS else None
        generator.bit_generator.state = state
    return generator


def _space_to_plain(space: Space[Any], path: str) -> Coded:
    below = [_space_to_plain(one, path) for one in _spaces_in(space)]
    return {"kind": "space", "generator": to_plain(vars(space)["_np_random"], path), "below": below}


def _space_from_plain(coded: Coded, there: Any, path: str) -> Any:
    inner = _spaces_in(there) if isinstance(there, Space) else []
    if not isinstance(there, Space) or len(inner) != len(coded["below"]):
        raise NotPlainError(f"{path} was another space, got {there}")
    there._np_random = from_plain(coded["generator"], vars(there)["_np_random"], path)
    for below, space in zip(coded["below"], inner, strict=True):
        _space_from_plain(below, space, path)
    return there


def _spaces_in(space: Space[Any]) -> list[Space[Any]]:
    found: list[Space[Any]] = []
    for value in vars(space).values():
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        parts = parts if isinstance(value, (dict, list, tuple)) else [value]
        found += [part for part in parts if isinstance(part, Space)]
    return found


# ---------------------------------------------------------------------- containers


def _container_to_plain(value: Any, path: str, met: Met | None, depth: int) -> Coded:
    kind, name = type(value), type(value).__name__
    if isinstance(value, enum.Enum):
        return {"kind": "enum", "class": _class_name(kind), "name": value.name}
    if kind in (dict, OrderedDict):
        pairs = [[to_plain(k, path, None, depth), to_plain(v, f"{path}[{k!r}]", met, depth)] for k, v in value.items()]
        return {"kind": name, "pairs": pairs}
    if kind in (list, tuple, set, frozenset, deque) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        items = [to_plain(item, f"{path}[{place}]", met, depth) for place, item in enumerate(value)]
        coded = {"kind": name, "items": items}
        if kind is deque:
            return {**coded, "maxlen": value.maxlen}
        return coded if name in SEQUENCES else {**coded, "kind": "namedtuple", "class": _class_name(kind)}
    if _has_parts(kind) and hasattr(value, "__dict__"):
        parts = {key: to_plain(below, f"{path}.{key}", met, depth) for key, below in vars(value).items()}
        return {"kind": "object", "class": _class_name(kind), "parts": parts}
    raise NotPlainError(f"{path} is a {kind.__module__}.{kind.__qualname__}")


def _container_from_plain(coded: Coded, there: Any, path: str, made: dict[int, Any]) -> Any:
    kind = coded["kind"]
    if kind == "enum":
        return _find_class(coded["class"], path, lambda one: issubclass(one, enum.Enum))[coded["name"]]
    if kind in ("dict", "OrderedDict"):
        old = there if isinstance(there, dict) else {}
        keys = [from_plain(key) for key, _ in coded["pairs"]]
        values = [below for _, below in coded["pairs"]]
        whole = {k: from_plain(v, old.get(k), f"{path}[{k!r}]", made) for k, v in zip(keys, values, strict=True)}
        return whole if kind == "dict" else OrderedDict(whole)
    if kind == "object":
        new = object.__new__(_find_class(coded["class"], path, _has_parts))
        for name, below in coded["parts"].items():
            object.__setattr__(new, name, from_plain(below, getattr(there, name, None), f"{path}.{name}", made))
        return new
    olds = list(there) if isinstance(there, (list, tuple, deque)) else []
    olds += [None] * (len(coded["items"]) - len(olds))
    items = [from_plain(item, olds[place], f"{path}[{place}]", made) for place, item in enumerate(coded["items"])]
    if kind == "deque":
        return deque(items, coded["maxlen"])
    if kind == "namedtuple":
        return _find_class(coded["class"], path, lambda one: hasattr(one, "_fields"))._make(items)
    return SEQUENCES[kind](items)


def _has_parts(kind: type) -> bool:
    """Return whether an object of a class is no more than its attributes."""
    return is_dataclass(kind) or kind is RunningMeanStd


def _class_name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _find_class(name: list[str], path: str, fits: Any) -> Any:
    """Return a class that is loaded already; a file must not make anything be imported or called."""
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not fits(found):
        raise NotPlainError(f"{path} was a {'.'.join(name)}, which is not there now")
    return found
