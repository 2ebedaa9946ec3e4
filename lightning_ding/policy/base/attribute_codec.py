"""Attributes of a policy as tensors and builtins, and restoring them in the objects that exist already.

Objects that several attributes share are stored once. Objects whose state is saved elsewhere, such as parameters, and
constants, such as functions, are not stored. No class or function that a file names is looked up: an object of a class
is restored in the one that the constructor of the policy made, if that is of the same class.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import logging
import random
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

Coded = Any
"""None, a bool, number or string, or a dict with ``kind``; only tensors and builtins."""
CONSTANT: tuple[type, ...] = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
CONSTANT += (functools.partial, logging.Logger, torch.dtype, torch.device, np.dtype, np.ufunc, Space, EnvSpec)
CONSTANT += (weakref.ref,)
PACKAGE = __name__.partition(".")[0]
EXISTING: Coded = {"kind": "existing"}
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
HEAP_TYPE = 1 << 9  # flag of a class that Python code defined
DEPTH = 50


class NotSavedError(TypeError):
    """An attribute cannot be saved or restored; the message names it and gives the reason."""


class Encoder:
    """Encodes attributes of one policy; an object that several of them refer to is encoded once.

    Args:
        known: Objects whose state is saved elsewhere.
    """

    def __init__(self, known: list[Any]) -> None:
        self._name = ""  # of the attribute that is encoded
        self._known = {id(one): one for one in known}
        self._known_memory = {_memory_of(one) for one in known if isinstance(one, Tensor) and one.numel()}
        self._memory: dict[int, str] = {}
        self._coded: dict[int, tuple[Any, Coded]] = {}  # keeps the objects alive, so that no id is used again
        self._numbers = 0

    def encode_attribute(self, name: str, value: Any, path: str) -> Coded:
        """Return an attribute as tensors and builtins; others do not refer to parts of one that cannot be saved.

        Args:
            name: Name of the attribute.
            value: Its value.
            path: Its name in errors.

        Raises:
            NotSavedError: If it holds something else; the message begins with ``path``.
        """
        self._name = name
        coded, memory = len(self._coded), len(self._memory)
        try:
            return self.encode(value, path)
        except NotSavedError:  # forget what it has added
            self._coded = dict(list(self._coded.items())[:coded])
            self._memory = dict(list(self._memory.items())[:memory])
            raise

    def encode(self, value: Any, path: str, depth: int = 0) -> Coded:
        """Return a value as tensors and builtins.

        Raises:
            NotSavedError: If it holds something else; the message begins with ``path``.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._known or isinstance(value, CONSTANT) or _is_config(value):
            return EXISTING
        if isinstance(value, enum.Enum):
            return {"kind": "enum", "name": value.name}
        if type(value) in (complex, bytes):
            parts = [value.real, value.imag] if isinstance(value, complex) else list(value)
            return {"kind": type(value).__name__, "items": parts}
        if depth > DEPTH:
            raise NotSavedError(f"{path} is nested deeper than {DEPTH} levels")
        if id(value) in self._coded:
            return self._again(value, path)
        self._coded[id(value)] = (value, None)
        try:
            coded = self._encode(value, path, depth + 1)
        except NotSavedError:
            del self._coded[id(value)]
            raise
        self._coded[id(value)] = (value, coded)
        return coded

    def _again(self, value: Any, path: str) -> Coded:
        coded = self._coded[id(value)][1]
        if coded is None:
            raise NotSavedError(f"{path} contains itself")
        if coded is EXISTING:
            return EXISTING
        if "number" not in coded:
            coded["number"], coded["in"] = self._numbers, self._name
            self._numbers += 1
        return {"kind": "same", "as": coded["number"], "in": coded["in"]}

    def _encode(self, value: Any, path: str, depth: int) -> Coded:
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, path)
        if isinstance(value, torch.Generator):
            return {"kind": "torch.Generator", "state": value.get_state(), "device": value.device.type}
        if isinstance(value, np.random.Generator):
            return {"kind": "Generator", "state": self.encode(value.bit_generator.state, path, depth)}
        if type(value) in (np.random.RandomState, random.Random):
            state = value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else value.getstate()
            return {"kind": type(value).__name__, "state": self.encode(state, path, depth)}
        if isinstance(value, dict):
            pairs = [[self.encode(k, path, depth), self.encode(v, f"{path}[{k!r}]", depth)] for k, v in value.items()]
            return {"kind": "dict", "class": _class_of(value), "pairs": pairs}
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return self._sequence(value, path, depth)
        if _has_state_dict(value):
            state = self.encode(value.state_dict(), f"{path}.state_dict()", depth)
            return {"kind": "state_dict", "class": _class_of(value), "state": state}
        if _is_plain_object(value):
            parts = [[name, self.encode(one, f"{path}.{name}", depth)] for name, one in vars(value).items()]
            return {"kind": "object", "class": _class_of(value), "pairs": parts}
        raise NotSavedError(f"{path} is a {_class_of(value)}")

    def _sequence(self, value: Any, path: str, depth: int) -> Coded:
        kind = next(name for name, one in SEQUENCES.items() if isinstance(value, one))
        items = [self.encode(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            items.sort(key=repr)  # the order of a set differs between processes
        return {"kind": kind, "class": _class_of(value), "items": items}

    def _tensor(self, value: Tensor, path: str) -> Coded:
        if value.layout is not torch.strided:
            raise NotSavedError(f"{path} is a tensor of layout {value.layout}")
        if value.numel():
            if _memory_of(value) in self._known_memory:
                return EXISTING  # such as the data of a parameter
            self._check_memory(_memory_of(value), path)
        data = value.detach().to("cpu", copy=True).contiguous()
        return {"kind": "tensor", "data": data, "device": value.device.type, "learns": value.requires_grad}

    def _array(self, value: Any, path: str) -> Coded:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            raise NotSavedError(f"{path} is a {_class_of(value)}")
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise NotSavedError(f"{path} is an array of {array.dtype}")
        if isinstance(value, np.ndarray) and array.size:
            self._check_memory(_memory_of(value), path)
        data = torch.from_numpy(np.frombuffer(array.tobytes() or b"\0", dtype=np.uint8).copy())
        facts = {"dtype": array.dtype.str, "shape": list(array.shape), "scalar": isinstance(value, np.generic)}
        return {"kind": "array", "data": data, **facts}

    def _check_memory(self, memory: int, path: str) -> None:
        """Raise if another tensor or array has the same memory, which a restored copy would not have."""
        if memory in self._memory:
            raise NotSavedError(f"{path} shares memory with {self._memory[memory]}")
        self._memory[memory] = path


class Decoder:
    """Restores encoded attributes of one policy in the existing objects.

    Args:
        device: Device of tensors that were not on the CPU, unless the existing tensor is elsewhere.
        known: Objects whose state is saved elsewhere, into which nothing is restored.
    """

    def __init__(self, device: torch.device | str, known: Iterable[Any] = ()) -> None:
        self._device = torch.device(device)
        self._known = {id(one): one for one in known if one is not None}
        self._decoded: dict[int, Any] = {}

    def decode(self, coded: Coded, existing: Any, path: str) -> Any:
        """Return the value that was encoded; the existing one, with the encoded content, where that is possible.

        Raises:
            NotSavedError: If an object of a class does not exist here, or is of another class.
        """
        if not isinstance(coded, dict):
            return coded
        if coded["kind"] == "same":
            if coded["as"] not in self._decoded:
                raise NotSavedError(f"{path} refers to an object that does not exist now")
            return self._decoded[coded["as"]]
        is_known = coded["kind"] != "existing" and (id(existing) in self._known or _is_config(existing))
        value = self._decode(coded, None if is_known else existing, path)
        if "number" in coded:
            self._decoded[coded["number"]] = value
        return value

    def _decode(self, coded: Coded, existing: Any, path: str) -> Any:
        kind = coded["kind"]
        if kind in ("tensor", "array"):
            return self._tensor(coded, existing) if kind == "tensor" else _array(coded, existing)
        if kind in ("complex", "bytes"):
            return complex(*coded["items"]) if kind == "complex" else bytes(coded["items"])
        if kind in ("existing", "enum"):
            return _existing(coded, existing, path)
        if kind == "torch.Generator":
            return self._torch_generator(coded, existing, path)
        if kind in ("Generator", "RandomState", "Random"):
            return _generator(kind, self.decode(coded["state"], None, path), existing, path)
        if kind in SEQUENCES:
            return self._sequence(coded, existing, path)
        return self._dict(coded, existing, path) if kind == "dict" else self._object(coded, existing, path)

    @torch.no_grad()
    def _tensor(self, coded: Coded, existing: Any) -> Tensor:
        data = cast(Tensor, coded["data"])
        if isinstance(existing, Tensor):
            is_same = existing.shape == data.shape and existing.dtype == data.dtype and existing.is_contiguous()
            if is_same and existing.is_leaf and not existing.is_inference():
                return existing.copy_(data)
        device = existing.device if isinstance(existing, Tensor) else torch.device("cpu")
        if not isinstance(existing, Tensor) and coded["device"] == self._device.type:
            device = self._device
        return data.to(device, copy=True).requires_grad_(coded["learns"])

    def _torch_generator(self, coded: Coded, existing: Any, path: str) -> torch.Generator:
        is_one = isinstance(existing, torch.Generator)
        generator = existing if is_one else torch.Generator(self._device if coded["device"] != "cpu" else "cpu")
        if generator.device.type != coded["device"]:
            raise NotSavedError(f"{path} was a generator on {coded['device']}, now it is on {generator.device.type}")
        generator.set_state(coded["state"])
        return cast(torch.Generator, generator)

    def _dict(self, coded: Coded, existing: Any, path: str) -> Any:
        old = existing if isinstance(existing, dict) and _class_of(existing) == coded["class"] else None
        if old is None and coded["class"] != "dict":
            raise NotSavedError(f"{path} was a {coded['class']}, got a {_class_of(existing)}")
        whole = {}
        for key, below in coded["pairs"]:
            name = self.decode(key, None, path)
            whole[name] = self.decode(below, None if old is None else old.get(name), f"{path}[{name!r}]")
        if old is None:
            return whole
        old.clear()
        old.update(whole)
        return old

    def _sequence(self, coded: Coded, existing: Any, path: str) -> Any:
        kind, fits = SEQUENCES[coded["kind"]], _class_of(existing) == coded["class"]
        is_named = coded["kind"] == "tuple" and coded["class"] != "tuple"
        if not fits and (coded["class"] not in ("list", "tuple", "set", "frozenset", "collections.deque")):
            raise NotSavedError(f"{path} was a {coded['class']}, got a {_class_of(existing)}")
        olds = list(existing) if isinstance(existing, (list, tuple, deque)) else []
        olds += [None] * (len(coded["items"]) - len(olds))
        items = [self.decode(one, olds[i], f"{path}[{i}]") for i, one in enumerate(coded["items"])]
        if fits and isinstance(existing, (list, set, deque)):
            existing.clear()
            (existing.update if isinstance(existing, set) else existing.extend)(items)
            return existing
        if is_named and not hasattr(type(existing), "_make"):
            raise NotSavedError(f"{path} is a {coded['class']}")
        return cast(Any, type(existing))._make(items) if is_named else kind(items)

    def _object(self, coded: Coded, existing: Any, path: str) -> Any:
        if _class_of(existing) != coded["class"]:
            raise NotSavedError(f"{path} was a {coded['class']}, got a {_class_of(existing)}")
        if coded["kind"] == "state_dict":
            try:
                existing.load_state_dict(self.decode(coded["state"], None, path))
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise NotSavedError(f"{path}.load_state_dict: {next(iter(str(error).splitlines()), '')}") from error
            return existing
        old = dict(vars(existing))
        for name, below in coded["pairs"]:
            object.__setattr__(existing, name, self.decode(below, old.pop(name, None), f"{path}.{name}"))
        for name in old:
            object.__delattr__(existing, name)
        return existing


def digest(coded: Coded) -> bytes:
    """Return a hash of an encoded attribute."""
    found = hashlib.blake2b(digest_size=16)
    _add_to(found, coded)
    return found.digest()


def _add_to(found: Any, coded: Coded) -> None:
    if isinstance(coded, Tensor):
        found.update(repr((coded.dtype, tuple(coded.shape))).encode())
        found.update(coded.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(coded, (dict, list)):
        found.update(f"{type(coded).__name__}{len(coded)}".encode())
        for one in coded.items() if isinstance(coded, dict) else coded:
            _add_to(found, list(one) if isinstance(one, tuple) else one)
    else:
        found.update(f"{type(coded).__name__} {coded!r};".encode())


def shared_with(coded: Coded) -> Iterator[str]:
    """Yield the names of the attributes that hold objects which an encoded attribute refers to."""
    below: Iterable[Any] = ()
    if isinstance(coded, dict):
        if coded.get("kind") == "same":
            yield coded["in"]
        below = coded.values()
    for one in coded if isinstance(coded, list) else below:
        yield from shared_with(one)


def _memory_of(value: Any) -> int:
    """Return the address of the memory that a tensor or an array is a part of."""
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.__array_interface__["data"][0])


def _class_of(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _has_state_dict(value: Any) -> bool:
    """Return whether the class of an object, which may pass attributes on to another one, saves its state."""
    return all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict"))


def _is_plain_object(value: Any) -> bool:
    """Return whether the state of an object consists of its attributes: its classes are Python code without slots.

    From Python 3.12 on, classes of C such as ``io.BytesIO`` have that flag too; their objects need more memory.
    """
    kinds = type(value).__mro__[:-1]
    is_python = all(one.__flags__ & HEAP_TYPE and not vars(one).get("__slots__") for one in kinds)
    return is_python and hasattr(value, "__dict__") and type(value).__basicsize__ == _Plain.__basicsize__


class _Plain:
    """An object without anything but attributes."""


def _is_config(value: Any) -> bool:
    """Return whether an object is a config of this package, which only the program chooses."""
    is_frozen = dataclasses.is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen  # noqa: B009
    return is_frozen and type(value).__module__.partition(".")[0] == PACKAGE


def _existing(coded: Coded, existing: Any, path: str) -> Any:
    if coded["kind"] == "existing":
        if existing is None:
            raise NotSavedError(f"{path} was an object that only the program makes, and does not exist now")
        return existing
    if not isinstance(existing, enum.Enum) or coded["name"] not in type(existing).__members__:
        raise NotSavedError(f"{path} was {coded['name']}, got {existing!r}")
    return type(existing)[coded["name"]]


def _array(coded: Coded, existing: Any) -> Any:
    size = int(np.prod(coded["shape"]))
    array = np.frombuffer(coded["data"].numpy().tobytes(), dtype=coded["dtype"], count=size).reshape(coded["shape"])
    if coded["scalar"]:
        return array[()]
    is_same = type(existing) is np.ndarray and (existing.shape, existing.dtype) == (array.shape, array.dtype)
    if is_same and existing.flags.writeable:
        existing[...] = array
        return existing
    return array.copy()


def _generator(kind: str, state: Any, existing: Any, path: str) -> Any:
    if kind == "Random":
        generator: Any = existing if type(existing) is random.Random else random.Random()
        generator.setstate(state)
    elif kind == "RandomState":
        generator = existing if type(existing) is np.random.RandomState else np.random.RandomState()
        generator.set_state(state)
    else:
        name = state["bit_generator"]
        generator = existing
        if not isinstance(existing, np.random.Generator) or existing.bit_generator.state["bit_generator"] != name:
            if name not in BIT_GENERATORS:
                raise NotSavedError(f"{path} was a generator of type {name}")
            generator = np.random.Generator(getattr(np.random, name)())
        generator.bit_generator.state = state
    return generator
