"""Saving what envs share: attributes of their classes, and variables of modules that their code names.

Values that have changed since the envs were created are saved, and set again in a resumed run.
"""

from __future__ import annotations

import enum
import hashlib
import random
import sys
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from lightning_ding.envs.state.ale import watch_ale
from lightning_ding.envs.state.codec import attributes, from_plain, to_plain
from lightning_ding.envs.state.memo import Memo, NotPlainError, is_tensor
from lightning_ding.envs.state.variables import GONE, Variable, find_variables

State = dict[str, Any]
SHARED = (list, dict, set, deque, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
"""Objects that an env may share with a variable, so that a change of one changes the other."""
DEPTH, LARGEST = 50, 20_000  # levels and objects of which a fingerprint is computed
VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)


class Origin:
    """A class of envs or wrappers when one of them was first created in this process.

    Args:
        layer: The new env or wrapper.
    """

    def __init__(self, layer: Any) -> None:
        self.attributes = sorted(attributes(layer))
        """Names of its attributes."""
        self.variables = find_variables(type(layer))
        self.fingerprints = {label: _fingerprint(one.value) for label, one in self.variables.items()}


_origins: dict[type, Origin] = {}


def note_origins(layers: Iterable[Any]) -> None:
    """Remember what new envs and wrappers share; later changes of it are part of their state."""
    for layer in layers:
        watch_ale(layer)
        if type(layer) not in _origins:
            _origins[type(layer)] = Origin(layer)


def attributes_at_creation(layer: Any) -> list[str] | None:
    """Return the names of the attributes of an env or wrapper when it was created; None if they are not known."""
    origin = _origins.get(type(layer))
    return None if origin is None else origin.attributes


def read_surroundings(layers: Iterable[Any], memo: Memo) -> State:
    """Return the values of changed variables, by name, in ``values``, and in ``lost`` those that cannot be saved.

    Must be called before the state of the envs is read with the same memo, because they may refer to the same objects.
    """
    values: State = {}
    lost: list[str] = []
    for variable, origin in _variables_of(layers):
        value = variable.value
        if value is GONE:
            values |= {variable.label: {"kind": "gone"}} if origin is not None else {}
        elif _fingerprint(value) != origin:
            try:
                values[variable.label] = to_plain(value, variable.label, memo)
            except NotPlainError as error:
                lost.append(str(error))
        elif isinstance(value, SHARED):
            with memo.copies():
                values[variable.label] = memo.once(value, variable.label, lambda: {"kind": "existing"})
    return {"values": values, "lost": lost}


def load_surroundings(layers: Iterable[Any], state: State, decoded: dict[int, Any]) -> None:
    """Set the variables that ``read_surroundings`` returned, if envs that were created in the same way share them.

    Raises:
        NotPlainError: If the value of a variable refers to something that does not exist now.
    """
    for variable, _ in _variables_of(layers):
        coded = state["values"].get(variable.label, GONE)
        if coded is GONE:
            continue
        old, kind = variable.value, coded["kind"] if isinstance(coded, dict) else None
        if kind == "gone":
            variable.set(GONE)
            continue
        value = from_plain(coded, None if old is GONE else old, variable.label, decoded)
        kept = value if kind == "same" else _refilled(old, value)
        if kind is not None and "number" in coded:
            decoded[coded["number"]] = kept
        if kept is not old:
            variable.set(kept)


def _variables_of(layers: Iterable[Any]) -> list[tuple[Variable, bytes | None]]:
    """Return each variable of envs and wrappers, and its fingerprint at their creation, None if it did not exist."""
    found: dict[str, tuple[Variable, bytes | None]] = {}
    for kind in {type(layer): None for layer in layers}:
        origin = _origins.get(kind)
        if origin is not None:
            variables = {**origin.variables, **find_variables(kind)}
            found |= {label: (one, origin.fingerprints.get(label)) for label, one in variables.items()}
    return list(found.values())


def _refilled(old: Any, new: Any) -> Any:
    """Give an object the content of another one, so that all that refer to it see it; return the new one if it cannot."""
    if old is new or type(old) is not type(new):
        return new
    if isinstance(old, (dict, set)):
        old.clear()
        old.update(new)
    elif isinstance(old, list):
        old[:] = new
    elif isinstance(old, deque) and old.maxlen == new.maxlen:
        old.clear()
        old.extend(new)
    elif isinstance(old, np.ndarray) and (old.shape, old.dtype, old.flags.writeable) == (new.shape, new.dtype, True):
        old[...] = new
    else:
        return new
    return old


def _fingerprint(value: Any) -> bytes:
    """Return a checksum of everything in a value that Python can see."""
    return _digest(value, set(), 0)


def _digest(value: Any, seen: set[int], depth: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, value, seen, depth)
    return digest.digest()


def _add(digest: Any, value: Any, seen: set[int], depth: int) -> None:
    digest.update(f"{type(value).__qualname__};".encode())
    if isinstance(value, VALUES):
        digest.update(repr(value).encode())
        return
    if id(value) in seen or depth > DEPTH or len(seen) > LARGEST:
        return
    seen.add(id(value))
    if isinstance(value, (set, frozenset)):
        digest.update(b"".join(sorted(_digest(one, set(seen), depth + 1) for one in value)))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.shape}{value.dtype}".encode() + np.ascontiguousarray(value).tobytes())
    else:
        for part in _parts(value):
            _add(digest, part, seen, depth + 1)


def _parts(value: Any) -> list[Any]:
    """Return the objects that a value consists of."""
    if is_tensor(value):
        return [value.dtype, *value.shape, value.detach().cpu().reshape(-1).view(sys.modules["torch"].uint8).numpy()]
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if isinstance(value, np.random.RandomState):
        return [value.get_state(legacy=False)]
    if isinstance(value, random.Random):
        return [value.getstate()]
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        return [value.__self__]
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return [value.__name__]
    items: list[Any] = list(value.reshape(-1)) if isinstance(value, np.ndarray) else []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, deque)):
        items = list(value)
    held = attributes(value)
    return [*items, *held, *held.values()]
