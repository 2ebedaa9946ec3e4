"""Encoding of plain data as tensors and builtins, which ``torch.load(weights_only=True)`` can read.

The content of arrays is in tensors, or in arrays of bytes in a process that has not imported torch, such as an env
process. Constants such as functions and classes are not saved. When a state is restored, they are taken from the
existing objects. The state of random number generators, spaces and simulators (MuJoCo, ALE) is saved, and set in the
existing objects.
"""

from __future__ import annotations

import enum
import functools
import logging
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers.utils import RunningMeanStd

from lightning_ding.envs.state import attributes
from lightning_ding.envs.state.memo import Coded, Memo, NotPlainError, is_tensor
from lightning_ding.envs.state.simulators import (
    is_rendering,
    is_simulator,
    load_simulator,
    read_simulator,
    simulator_name,
    simulator_parts,
)

MUTABLE = (list, dict, set, deque, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
DEPTH = 50
CONSTANT: tuple[type, ...] = (type, EnvSpec, logging.Logger, functools.partial, types.ModuleType, np.ufunc)
CONSTANT += (types.FunctionType, types.MethodType, types.BuiltinFunctionType, np.dtype)
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, np.generic, logging.Logger, types.ModuleType, type)
CHANGEABLE: tuple[type, ...] = (list, dict, set, deque, bytearray)
CHANGEABLE += (np.random.Generator, np.random.RandomState, random.Random)
CONSTANT_DEPTH = 10
PARTS = frozenset({"instance", "method", "class"})
"""Kinds of encodings that ``Memo.read_parts`` makes."""
LOAD_PARTS = -1
"""The key, among the numbers of decoded objects, of the function that restores those encodings."""


def to_plain(value: Any, path: str = "value", memo: Memo | None = None, depth: int = 0) -> Coded:
    """Return a copy of plain data as tensors and builtins.

    Args:
        value: None, a bool, number, string, enum member, array, tensor, random number generator, simulator or constant,
            or a list, tuple, dict, set, deque or dataclass of these.
        path: Name of the value in errors.
        memo: Objects of the same state that were encoded before, each of which is encoded once.
        depth: Number of objects around the value.

    Raises:
        NotPlainError: If the value, or an object in it, is of another kind.
    """
    if depth > DEPTH:
        raise NotPlainError(f"{path} is nested deeper than {DEPTH} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if memo is not None and (memo.read_parts is not None or _is_mutable(value)):
        return memo.once(value, path, lambda: _to_plain(value, path, memo, depth))
    return _to_plain(value, path, memo, depth)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, MUTABLE) or is_tensor(value) or _has_parts(type(value)) or is_simulator(value)


def _to_plain(value: Any, path: str, memo: Memo | None, depth: int) -> Coded:
    if isinstance(value, (np.ndarray, np.generic)):
        return _array_to_plain(value, path, memo, depth)
    if is_tensor(value) and not value.requires_grad:
        return {"kind": "tensor", "data": value.detach().clone()}
    if type(value) is complex:
        return {"kind": "complex", "data": [value.real, value.imag]}
    if type(value) is bytes:
        return {"kind": "bytes", "data": _stored(value)}
    if isinstance(value, Space):
        return _space_to_plain(value, path)
    if is_simulator(value):
        state = to_plain(read_simulator(value, path), path, memo, depth + 1)
        return {"kind": "simulator", "class": simulator_name(value), "state": state}
    if memo is not None and memo.read_parts is not None and isinstance(value, (types.MethodType, type)):
        return memo.read_parts(value, path, memo, depth)
    if _is_constant(value):
        held = state_within(value, () if memo is None else memo.layers)
        if held is not None:
            raise NotPlainError(f"{path} {held}")
        return {"kind": "constant"}
    return _generator_to_plain(value, path) or _container_to_plain(value, path, memo, depth + 1)


def from_plain(coded: Coded, existing: Any = None, path: str = "value", decoded: dict[int, Any] | None = None) -> Any:
    """Return the value that ``to_plain`` encoded, in new memory.

    Args:
        coded: Encoding that ``to_plain`` returned.
        existing: Existing object in the place of the value. Constants are taken from it, and the states of its random
            number generators, spaces and simulators are set.
        path: Name of the value in errors.
        decoded: Objects of the same state that were decoded before, by number.

    Raises:
        NotPlainError: If a constant is missing in ``existing``, or a class is unknown.
    """
    if not isinstance(coded, dict):
        return coded
    decoded = {} if decoded is None else decoded
    if coded["kind"] == "same":
        if coded["as"] not in decoded:
            raise NotPlainError(f"{path} refers to an object that does not exist now")
        return decoded[coded["as"]]
    if coded["kind"] in PARTS:
        if LOAD_PARTS not in decoded:
            raise NotPlainError(f"{path} was an object of another package, which is not expected here")
        value = decoded[LOAD_PARTS](coded, existing, path, decoded)
    else:
        value = _from_plain(coded, existing, path, decoded)
    if "number" in coded:
        decoded[coded["number"]] = value
    return value


def _from_plain(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    kind = coded["kind"]
    if kind == "array":
        return _array_from_plain(coded, path, decoded)
    if kind == "tensor":
        return coded["data"].clone()
    if kind in ("bytes", "complex"):
        return complex(*coded["data"]) if kind == "complex" else np.asarray(coded["data"]).tobytes()
    if kind == "constant":
        if not _is_constant(existing):
            raise NotPlainError(f"{path} was a constant when saved, got {type(existing).__name__}")
        return existing
    if kind == "existing":
        return existing
    if kind == "space":
        return _space_from_plain(coded, existing, path)
    if kind == "simulator":
        state = from_plain(coded["state"], simulator_parts(existing), path, decoded)
        load_simulator(existing, coded["class"], state, path)
        return existing
    if kind in ("Generator", "RandomState", "Random"):
        return _generator_from_plain(coded, existing, path)
    return _container_from_plain(coded, existing, path, decoded)


def _array_to_plain(value: Any, path: str, memo: Memo | None, depth: int) -> Coded:
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        raise NotPlainError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")
    array, is_scalar = np.asarray(value), isinstance(value, np.generic)
    if array.dtype == object:
        items = [to_plain(item, f"{path}[{i}]", memo, depth + 1) for i, item in enumerate(array.reshape(-1))]
        return {"kind": "array", "dtype": "object", "shape": list(array.shape), "items": items}
    if array.dtype.names is not None:
        raise NotPlainError(f"{path} is an array of records")
    coded = {"kind": "array", "dtype": array.dtype.str, "shape": list(array.shape)}
    return {**coded, "data": _stored(array.tobytes() or b"\0"), "is_scalar": is_scalar}


def _stored(data: bytes) -> Any:
    """Return bytes in new memory: a tensor, or an array in a process without torch."""
    array, torch = np.frombuffer(data, dtype=np.uint8).copy(), sys.modules.get("torch")
    return array if torch is None else torch.from_numpy(array)


def _is_constant(value: Any) -> bool:
    if isinstance(value, CONSTANT) or is_rendering(value):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.dtype, torch.device))


def _array_from_plain(coded: Coded, path: str, decoded: dict[int, Any]) -> Any:
    size = int(np.prod(coded["shape"]))
    if coded["dtype"] == "object":
        array = np.empty(size, dtype=object)
        for place, item in enumerate(coded["items"]):
            array[place] = from_plain(item, None, f"{path}[{place}]", decoded)
        return array.reshape(coded["shape"])
    array = np.frombuffer(np.asarray(coded["data"]).tobytes(), dtype=coded["dtype"], count=size)
    array = array.reshape(coded["shape"]).copy()
    return array[()] if coded["is_scalar"] else array


def _generator_to_plain(value: Any, path: str) -> Coded:
    if isinstance(value, np.random.Generator) and value.bit_generator.state["bit_generator"] in BIT_GENERATORS:
        return {"kind": "Generator", "state": to_plain(value.bit_generator.state, path)}
    if type(value) is np.random.RandomState:
        return {"kind": "RandomState", "state": to_plain(value.get_state(legacy=False), path)}
    if type(value) is random.Random:
        return {"kind": "Random", "state": to_plain(value.getstate(), path)}
    return None


def _generator_from_plain(coded: Coded, existing: Any, path: str) -> Any:
    state = from_plain(coded["state"], None, path)
    if coded["kind"] == "Random":
        generator: Any = existing if type(existing) is random.Random else random.Random()
        generator.setstate(state)
    elif coded["kind"] == "RandomState":
        generator = existing if type(existing) is np.random.RandomState else np.random.RandomState()
        generator.set_state(state)
    else:
        generator = existing
        name = state["bit_generator"]
        if not isinstance(existing, np.random.Generator) or existing.bit_generator.state["bit_generator"] != name:
            generator = np.random.Generator(getattr(np.random, name)()) if name in BIT_GENERATORS else None
        generator.bit_generator.state = state
    return generator


def _space_to_plain(space: Space[Any], path: str) -> Coded:
    below = [_space_to_plain(one, path) for one in _spaces_in(space)]
    return {"kind": "space", "generator": to_plain(vars(space)["_np_random"], path), "below": below}


def _space_from_plain(coded: Coded, existing: Any, path: str) -> Any:
    inner = _spaces_in(existing) if isinstance(existing, Space) else []
    if not isinstance(existing, Space) or len(inner) != len(coded["below"]):
        raise NotPlainError(f"{path} was a different space when saved, got {existing}")
    existing._np_random = from_plain(coded["generator"], vars(existing)["_np_random"], path)
    for below, space in zip(coded["below"], inner, strict=True):
        _space_from_plain(below, space, path)
    return existing


def _spaces_in(space: Space[Any]) -> list[Space[Any]]:
    found: list[Space[Any]] = []
    for value in vars(space).values():
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        parts = parts if isinstance(value, (dict, list, tuple)) else [value]
        found += [part for part in parts if isinstance(part, Space)]
    return found


def _container_to_plain(value: Any, path: str, memo: Memo | None, depth: int) -> Coded:
    kind, name = type(value), type(value).__name__
    if isinstance(value, enum.Enum):
        return {"kind": "enum", "class": _class_name(kind), "name": value.name}
    if kind in (dict, OrderedDict):
        of_keys = memo if memo is not None and memo.read_parts is not None else None
        pairs = [
            [to_plain(k, path, of_keys, depth), to_plain(v, f"{path}[{k!r}]", memo, depth)] for k, v in value.items()
        ]
        return {"kind": name, "pairs": pairs}
    if kind in (list, tuple, set, frozenset, deque) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        items = [to_plain(item, f"{path}[{place}]", memo, depth) for place, item in enumerate(value)]
        coded = {"kind": name, "items": items}
        if kind is deque:
            return {**coded, "maxlen": value.maxlen}
        return coded if name in SEQUENCES else {**coded, "kind": "namedtuple", "class": _class_name(kind)}
    if _has_parts(kind):
        parts = {key: to_plain(below, f"{path}.{key}", memo, depth) for key, below in attributes(value).items()}
        return {"kind": "object", "class": _class_name(kind), "parts": parts}
    found = None if memo is None or memo.read_parts is None else memo.read_parts(value, path, memo, depth)
    if found is not None:
        return found
    raise NotPlainError(f"{path} is a {kind.__module__}.{kind.__qualname__}")


def _container_from_plain(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    kind = coded["kind"]
    if kind == "enum":
        return find_class(coded["class"], path, lambda one: issubclass(one, enum.Enum))[coded["name"]]
    if kind in ("dict", "OrderedDict"):
        old = existing if isinstance(existing, dict) else {}
        keys = [from_plain(key, None, path, decoded) for key, _ in coded["pairs"]]
        values = [below for _, below in coded["pairs"]]
        whole = {k: from_plain(v, old.get(k), f"{path}[{k!r}]", decoded) for k, v in zip(keys, values, strict=True)}
        return whole if kind == "dict" else OrderedDict(whole)
    if kind == "object":
        new = object.__new__(find_class(coded["class"], path, _has_parts))
        for name, below in coded["parts"].items():
            object.__setattr__(new, name, from_plain(below, getattr(existing, name, None), f"{path}.{name}", decoded))
        return new
    olds = list(existing) if isinstance(existing, (list, tuple, deque)) else []
    olds += [None] * (len(coded["items"]) - len(olds))
    items = [from_plain(item, olds[place], f"{path}[{place}]", decoded) for place, item in enumerate(coded["items"])]
    if kind == "deque":
        return deque(items, coded["maxlen"])
    if kind == "namedtuple":
        return find_class(coded["class"], path, lambda one: hasattr(one, "_fields"))._make(items)
    return SEQUENCES[kind](items)


def _has_parts(kind: type) -> bool:
    """Return whether the state of an object consists of its attributes only."""
    return is_dataclass(kind) or kind is RunningMeanStd


def _class_name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def find_class(name: list[str], path: str, fits: Any) -> Any:
    """Return a class of a module that is already imported; loading a file must not import or call anything."""
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not fits(found):
        raise NotPlainError(f"{path} was a {'.'.join(name)}, which is not imported")
    return found


def state_within(value: Any, layers: Sequence[Any], depth: int = 0) -> str | None:
    """Return a description of mutable state that a constant holds, the end of a sentence about it; or None.

    Args:
        value: Instance of one of ``CONSTANT``.
        layers: Envs and wrappers whose state is read; their methods hold no other state.
        depth: Number of constants around the value.
    """
    if depth > CONSTANT_DEPTH:
        return None
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        return _bound_to(value.__self__, layers)
    if isinstance(value, functools.partial):
        held = [value.func, *value.args, *value.keywords.values()]
        return _first_held(held, layers, depth, "is a functools.partial of")
    if isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] != "gymnasium":
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return _first_held([*_cells(value), *defaults], layers, depth, "is a function that holds")
    return None


def _bound_to(owner: Any, layers: Sequence[Any]) -> str | None:
    if isinstance(owner, IMMUTABLE) or any(owner is layer for layer in layers):
        return None
    return f"is a method of {_a(owner)}"


def _first_held(held: Sequence[Any], layers: Sequence[Any], depth: int, words: str) -> str | None:
    for one in held:
        if isinstance(one, CHANGEABLE) or is_tensor(one) or (isinstance(one, np.ndarray) and one.flags.writeable):
            return f"{words} {_a(one)}"
        below = state_within(one, layers, depth + 1)
        if below is not None:
            return f"{words} a constant that {below}"
    return None


def _cells(function: types.FunctionType) -> list[Any]:
    """Return the variables in the closure of a function."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found


def _a(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
