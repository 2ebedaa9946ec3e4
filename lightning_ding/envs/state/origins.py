"""What envs share when they are created: their classes' attributes and the variables of modules that their code names.

A run needs no more than this until it saves the state of its envs; that is in ``state`` and ``surroundings``.
"""

from __future__ import annotations

import enum
import hashlib
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.state.memo import Coded, Memo, NotPlainError, is_tensor, size_of
from lightning_ding.envs.state.variables import GONE, Variables, attributes

SHARED = (list, dict, set, deque, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
"""Objects that an env may share with a variable, so that a change of one changes the other."""
DEPTH, LARGEST = 50, 20_000  # levels and objects of other classes of which a fingerprint is computed
VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
COPIED = 1_000_000  # bytes of a value that is kept to restore it


class Origin:
    """The variables of a class of envs or wrappers when one of them was first created in this process.

    Args:
        layer: The new env or wrapper.
    """

    def __init__(self, layer: Any) -> None:
        self.attributes = sorted(attributes(layer))
        """Names of the attributes of the env."""
        self.variables = Variables(type(layer))
        values = {label: one.value for label, one in self.variables.all().items()}
        self.fingerprints = {label: fingerprint(value) for label, value in values.items()}
        self.copies = {label: coded for label, value in values.items() for coded in _copies(value, label)}
        """Encodings of the values that are small."""


origins: dict[type, Origin] = {}


def note_origins(layers: Iterable[Any]) -> None:
    """Remember what new envs and wrappers share; later changes of it are part of their state."""
    for layer in layers:
        if "ale_py" in sys.modules:
            from lightning_ding.envs.state.ale import watch_ale

            watch_ale(layer)
        if type(layer) not in origins:
            origins[type(layer)] = Origin(layer)


def _copies(value: Any, label: str) -> Iterator[Coded]:
    """Yield an encoding of a value unless it is large or no plain data."""
    if value is GONE:
        yield {"kind": "gone"}
        return
    from lightning_ding.envs.state.codec import to_plain

    with suppress(NotPlainError):
        coded = to_plain(value, label, Memo())
        if size_of(coded) < COPIED:
            yield coded


def fingerprint(value: Any) -> bytes:
    """Return a checksum of everything in a value that Python can see."""
    return _Fingerprint().of(value)


class _Fingerprint:
    """The objects of which a checksum was computed.

    Args:
        seen: Numbers of objects that were seen before.
    """

    def __init__(self, seen: Iterable[int] = ()) -> None:
        self._seen = set(seen)
        self._objects = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def of(self, value: Any, depth: int = 0) -> bytes:
        """Return the checksum of a value, around which are ``depth`` objects."""
        self._add(value, depth)
        return self._digest.digest()

    def _add(self, value: Any, depth: int) -> None:
        self._digest.update(f"{type(value).__qualname__};".encode())
        if isinstance(value, VALUES):
            self._digest.update(repr(value).encode())
            return
        self._objects += not isinstance(value, (*SHARED, tuple, frozenset))
        if id(value) in self._seen or depth > DEPTH or self._objects > LARGEST:
            return
        self._seen.add(id(value))
        if isinstance(value, (set, frozenset)):
            self._digest.update(b"".join(sorted(_Fingerprint(self._seen).of(one, depth + 1) for one in value)))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._digest.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
        else:
            for part in _parts(value):
                self._add(part, depth + 1)


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


def layers_of(env: VectorEnv) -> list[Any]:
    """Return a vector env, its wrappers, and its envs and their wrappers."""
    *wrappers, core = chain(env)
    return [*wrappers, core, *(layer for one in envs_in(core) for layer in chain(one))]


def envs_in(core: Any) -> Sequence[Any]:
    """Return the envs whose states are read one by one."""
    return core.envs if isinstance(core, SyncVectorEnv) and not has_state_dict(core) else ()


def chain(env: Any) -> Iterator[Any]:
    """Yield an env and everything that it wraps, outermost first."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def has_state_dict(layer: Any) -> bool:
    """Return whether an env or wrapper saves its state itself."""
    return callable(getattr(layer, "state_dict", None)) and callable(getattr(layer, "load_state_dict", None))
