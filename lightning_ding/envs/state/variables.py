"""Finding the variables that envs share: attributes of their classes, and variables of modules that their code names."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LIBRARIES = frozenset({"gymnasium", "lightning", "lightning_ding", "numpy", "torch", *sys.stdlib_module_names})
"""Packages that hold no state of an env."""
INSTALLED = ("site-packages", "dist-packages")
CALLABLE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
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


def find_variables(kind: type) -> dict[str, Variable]:
    """Return the variables of a class, by label.

    They are the attributes of the class and its bases, the variables of modules that their methods name, and the same
    of functions and classes that these methods name. The packages in :data:`LIBRARIES` are left out, and so are
    installed packages other than those of the class and its bases.
    """
    packages = {_package(base.__module__) for base in kind.__mro__}
    found: dict[str, Variable] = {}
    queue: list[Any] = list(kind.__mro__)
    seen: set[int] = set()
    while queue:
        one = queue.pop()
        if id(one) in seen or _is_library(getattr(one, "__module__", None), packages):
            continue
        seen.add(id(one))
        if isinstance(one, type):
            queue += one.__mro__
            named = [Variable(one, name, full_name(one)) for name in list(vars(one)) if not name.startswith("__")]
        else:
            named = list(_globals_of(one, packages))
        for variable in named:
            value = variable.value
            code = list(_code_of(value))
            queue += code
            if not (code or isinstance(value, CALLABLE) or hasattr(type(value), "__get__") or value is GONE):
                found[variable.label] = variable
        queue += [below for name in vars(one) if name.startswith("__") for below in _code_of(vars(one)[name])]
    return {label: one for label, one in found.items() if "._abc_" not in label}


def _package(module: str | None) -> str:
    return (module or "builtins").partition(".")[0]


@functools.cache
def _is_installed(package: str) -> bool:
    path = getattr(sys.modules.get(package), "__file__", None) or ""
    return any(part in path for part in INSTALLED)


def _is_library(module: str | None, packages: set[str]) -> bool:
    package = _package(module)
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
    names, members = _names_in(function.__code__)
    for name in sorted(names & namespace.keys()):
        value = namespace[name]
        yield Variable(namespace, name, str(namespace.get("__name__")))
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__, packages):
            inner = vars(value)
            yield from (Variable(inner, below, value.__name__) for below in sorted(members & inner.keys()))


def _names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the global names in the code of a function, and the names of attributes."""
    names, members = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in GLOBAL:
            names.add(step.argval)
        elif step.opname in MEMBER:
            members.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            below = _names_in(inner)
            names |= below[0]
            members |= below[1]
    return names, members
