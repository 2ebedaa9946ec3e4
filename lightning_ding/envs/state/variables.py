"""Finding the variables that envs share: attributes of classes, and variables of modules that the envs' code names."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning_ding.envs.state import LIBRARIES, package_of

INSTALLED = ("site-packages", "dist-packages")
CALLABLE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
STORE = "STORE_GLOBAL"
MEMBER = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})
GONE = object()
"""The value of a variable that does not exist."""


class Variable:
    """An attribute of a class, or a variable of a module.

    Args:
        owner: The class, or the namespace of the module.
        name: Name of the variable.
        of: Full name of the class or module.
    """

    def __init__(self, owner: type | dict[str, Any], name: str, of: str) -> None:
        self._owner, self._name = owner, name
        self.label = f"{of}.{name}"
        """Full name of the variable."""

    @property
    def value(self) -> Any:
        """The value, or :data:`GONE`."""
        held: Mapping[str, Any] = self._owner if isinstance(self._owner, dict) else vars(self._owner)
        return held.get(self._name, GONE)

    def set(self, value: Any) -> None:
        """Set the variable; delete it for :data:`GONE`."""
        if isinstance(self._owner, dict):
            self._owner[self._name] = value
            if value is GONE:
                del self._owner[self._name]
        elif value is not GONE:
            setattr(self._owner, self._name, value)
        elif self.value is not GONE:
            delattr(self._owner, self._name)


def full_name(kind: type) -> str:
    """Return the name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


class Variables:
    """The variables of a class.

    They are the attributes of the class and its bases, the variables of modules that their methods name, and the same
    of functions and classes that these methods name. The packages in ``LIBRARIES`` are left out, and so are
    installed packages other than those of the class and its bases.

    Args:
        kind: Class of an env or wrapper.
    """

    def __init__(self, kind: type) -> None:
        self._packages = {package_of(base.__module__) for base in kind.__mro__}
        self._classes: dict[str, type] = {}
        self._found: dict[str, Variable] = {}
        queue: list[Any] = list(kind.__mro__)
        seen: set[int] = set()
        while queue:
            one = queue.pop()
            if id(one) not in seen and not _is_library(getattr(one, "__module__", None), self._packages):
                seen.add(id(one))
                queue += self._look_into(one)

    def all(self) -> dict[str, Variable]:
        """Return the variables by label."""
        return dict(self._found)

    def find(self, label: str) -> Variable | None:
        """Return a variable, or one that would be a new attribute of one of the classes; None if there is none."""
        owner, _, name = label.rpartition(".")
        if label in self._found or owner not in self._classes or name.startswith("__"):
            return self._found.get(label)
        new = Variable(self._classes[owner], name, owner)
        return new if new.value is GONE else None

    def _look_into(self, one: Any) -> list[Any]:
        """Add the variables of a class or function, and return the classes and functions that it names."""
        if isinstance(one, type):
            named = [Variable(one, name, full_name(one)) for name in list(vars(one)) if not name.startswith("__")]
            special = [value for name, value in list(vars(one).items()) if name.startswith("__")]
            self._classes[full_name(one)] = one
        else:
            named, special = list(_globals_of(one, self._packages)), []
        below = [*one.__mro__] if isinstance(one, type) else []
        for value in special:
            below += _code_of(value)
        for variable in named:
            value = variable.value
            code = list(_code_of(value))
            below += code
            if not (
                code or isinstance(value, CALLABLE) or hasattr(type(value), "__get__") or "._abc_" in variable.label
            ):
                self._found[variable.label] = variable
        return below


@functools.cache
def _is_installed(package: str) -> bool:
    path = getattr(sys.modules.get(package), "__file__", None) or ""
    return any(part in path for part in INSTALLED)


def _is_library(module: str | None, packages: set[str]) -> bool:
    package = package_of(module)
    return package in LIBRARIES or (package not in packages and _is_installed(package))


def _code_of(value: Any) -> Iterator[Any]:
    """Yield the classes and functions that an attribute consists of."""
    if isinstance(value, (type, types.FunctionType)):
        yield value
    parts = [getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__", "func", "__wrapped__")]
    is_code = isinstance(value, (property, staticmethod, classmethod, functools.cached_property, functools.partial))
    if is_code or (callable(value) and not isinstance(value, CALLABLE) and hasattr(value, "__wrapped__")):
        yield from (part for part in parts if isinstance(part, (type, types.FunctionType)))


def _globals_of(function: Callable[..., Any], packages: set[str]) -> Iterator[Variable]:
    """Yield the variables of modules that a function names."""
    namespace: dict[str, Any] = getattr(function, "__globals__", {})
    names, stored, members = _names_in(function.__code__)
    for name in sorted(names & (namespace.keys() | stored)):
        value = namespace.get(name)
        yield Variable(namespace, name, str(namespace.get("__name__")))
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__, packages):
            inner = vars(value)
            yield from (Variable(inner, below, value.__name__) for below in sorted(members & inner.keys()))


def _names_in(code: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the global names in the code of a function, those of them that it sets, and the names of attributes."""
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    names = {name for operation, name in steps if operation in GLOBAL}
    stored = {name for operation, name in steps if operation == STORE}
    members = {name for operation, name in steps if operation in MEMBER}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            below = _names_in(inner)
            names, stored, members = names | below[0], stored | below[1], members | below[2]
    return names, stored, members
