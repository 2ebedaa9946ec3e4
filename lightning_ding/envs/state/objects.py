"""Reading and restoring objects of other packages whose state consists of their attributes, such as games of teams.

The codec refuses an object of a class that it does not know, because such a class may hold more than attributes. Here
the whole graph of objects that a game consists of is read: each object once, with all that refer to it. A restored
object is the existing one in its place, if that has the same class, so that whatever holds it sees the restored state.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium.utils import EzPickle

from lightning_ding.envs.state import LIBRARIES, attributes, package_of
from lightning_ding.envs.state.codec import LOAD_PARTS, find_class, from_plain, to_plain
from lightning_ding.envs.state.memo import Coded, Memo, NotPlainError

HEAP = 1 << 9
"""Flag of classes that are defined in Python."""
RENDERING = frozenset({"pygame", "pyglet"})
"""Packages that draw; their objects are drawn anew from the state of a game."""
USED, PACKAGES = -2, -3
"""The keys, among the numbers of decoded objects, of the objects that have been restored, and of the packages whose
classes a state may name: those of the existing objects."""


def read_object(root: Any, path: str, may_share: bool = False) -> Coded:
    """Return the state of an object and of all objects that it holds, as tensors and builtins.

    An object with ``state_dict`` and ``load_state_dict`` saves itself.

    Args:
        root: The object.
        path: Name of the object in errors.
        may_share: Whether arrays and tensors may share memory. Restored ones do not, so each must be set anew before it
            is read.

    Raises:
        NotPlainError: If one of the objects holds what cannot be read, or arrays share memory.
    """
    if all(callable(getattr(root, name, None)) for name in ("state_dict", "load_state_dict")):
        return {"asked": to_plain(root.state_dict(), f"{path}.state_dict()")}
    memo = Memo(read_parts=_read_parts)
    coded = to_plain(root, path, memo)
    if not may_share:
        memo.check_memory()
    return coded


def load_object(root: Any, coded: Coded, path: str) -> None:
    """Restore what :func:`read_object` returned, in the same object.

    Raises:
        NotPlainError: If it is of another class now, or holds something else.
    """
    if "asked" in coded:
        root.load_state_dict(from_plain(coded["asked"], None, path))
        return
    packages = set(_packages_in(read_object(root, path, may_share=True)))
    if from_plain(coded, root, path, {USED: {}, PACKAGES: packages, LOAD_PARTS: _load}) is not root:
        raise NotPlainError(f"{path} was a {'.'.join(coded['class'])} when saved, got {type(root).__name__}")


def is_plain_class(kind: type) -> bool:
    """Return whether the objects of a class consist of their attributes: a class in Python without own pickling.

    That of ``EzPickle``, which envs inherit, creates another env, and says nothing about their attributes.
    """
    is_python = all(bool(base.__flags__ & HEAP) for base in kind.__mro__ if base is not object)
    own = [name for name in ("__reduce_ex__", "__reduce__") if getattr(kind, name) is not getattr(object, name)]
    is_own = package_of(kind.__module__) not in LIBRARIES or issubclass(kind, gym.Env)
    loads = getattr(kind, "__setstate__", EzPickle.__setstate__)
    is_named = loads.__qualname__ == EzPickle.__setstate__.__qualname__  # PettingZoo has its own
    return is_python and not own and is_own and is_named and not hasattr(kind, "__del__")


def _read_parts(value: Any, path: str, memo: Memo, depth: int) -> Coded:
    """Return the encoding of an object, a method or a class; None if it is none of those here."""
    if isinstance(value, types.MethodType):
        return {"kind": "method", "of": to_plain(value.__self__, path, memo, depth + 1), "name": value.__name__}
    if isinstance(value, type):
        return {"kind": "class", "class": [value.__module__, value.__qualname__]}
    kind = type(value)
    if package_of(kind.__module__) in RENDERING:
        return {"kind": "existing"}
    if not is_plain_class(kind):
        return None
    coded: Coded = {"kind": "instance", "class": [kind.__module__, kind.__qualname__], "parts": {}}
    memo.begin(value, coded)  # because it may contain itself
    coded["parts"] |= {key: to_plain(one, f"{path}.{key}", memo, depth) for key, one in attributes(value).items()}
    return coded


def _load_parts(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    """Return the object of an encoding, the existing one if it has the class and has not been restored already."""
    kind, used = _class_of(coded, path, decoded), decoded[USED]
    value = existing if type(existing) is kind and id(existing) not in used else object.__new__(kind)
    used[id(value)] = value
    if "number" in coded:
        decoded[coded["number"]] = value
    old = attributes(value if value is existing else existing)
    for name in old.keys() - coded["parts"].keys() if value is existing else ():
        object.__delattr__(value, name)
    for name, below in coded["parts"].items():
        object.__setattr__(value, name, from_plain(below, old.get(name), f"{path}.{name}", decoded))
    return value


def _load_method(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    """Return the method of an object of an encoding.

    Raises:
        NotPlainError: If its class has no such method now.
    """
    owner = from_plain(coded["of"], getattr(existing, "__self__", None), path, decoded)
    function = inspect.getattr_static(type(owner), coded["name"], None)
    if not isinstance(function, types.FunctionType):
        raise NotPlainError(f"{path} was a method {coded['name']!r} when saved, which {type(owner).__name__} lacks")
    return types.MethodType(function, owner)


def _load_class(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    return _class_of(coded, path, decoded)


def _class_of(coded: Coded, path: str, decoded: dict[int, Any]) -> type:
    """Return the class that an encoding names, which must be of a package of the existing objects."""
    packages = decoded.get(PACKAGES, ())
    found: type = find_class(
        coded["class"], path, lambda one: is_plain_class(one) and package_of(one.__module__) in packages
    )
    return found


def _packages_in(coded: Coded) -> Iterator[str]:
    """Yield the packages of the objects in an encoding."""
    if isinstance(coded, dict) and coded.get("kind") in ("instance", "class"):
        yield package_of(coded["class"][0])
    below = coded.values() if isinstance(coded, dict) else coded if isinstance(coded, (list, tuple)) else ()
    for one in below:
        yield from _packages_in(one)


def _load(coded: Coded, existing: Any, path: str, decoded: dict[int, Any]) -> Any:
    """Return what an encoding that is made here stands for."""
    load = {"instance": _load_parts, "method": _load_method, "class": _load_class}[coded["kind"]]
    return load(coded, existing, path, decoded)
