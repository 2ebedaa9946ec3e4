"""Finding the names of this package where code imports ``ding``; see :mod:`as_ding`.

``ding.policy``, ``ding.envs`` and the other packages of ``PACKAGES``, with all their modules, have the names of
:mod:`lightning_ding.di_engine` ``.policy``, ``.envs`` and so on.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOT = "ding"
PACKAGES = (
    *("bonus", "config", "data", "entry", "envs", "framework", "model", "policy", "reward_model", "rl_utils"),
    *("torch_utils", "utils", "worker"),
)
"""Packages of DI-engine that have a module of this package."""
ELSEWHERE = "docs/from_di_engine.md lists what is"


def home_of(module: str) -> ModuleType:
    """Return the module of this package that has the names of a module of DI-engine, such as ``ding.envs.common``.

    Raises:
        ImportError: If none has.
    """
    package = module.split(".")[1]
    if package not in PACKAGES:
        known = ", ".join(f"{ROOT}.{name}" for name in PACKAGES)
        raise ImportError(f"{ROOT}.{package} is not available in lightning_ding, which has {known}; {ELSEWHERE}")
    return importlib.import_module(f"lightning_ding.di_engine.{package}")


def find(module: str, name: str) -> Any:
    """Return what is called ``name`` in a module of DI-engine.

    Raises:
        ImportError: If it is not available here.

    Example:
        >>> find("ding.torch_utils", "to_ndarray")([1.0])
        array([1.])
        >>> find("ding.policy.ibc", "IBCPolicy")
        Traceback (most recent call last):
        ...
        ImportError: IBCPolicy of ding.policy.ibc is not available in lightning_ding; docs/from_di_engine.md lists ...
    """
    home = home_of(module)
    if name in getattr(home, "REFUSED", ()):
        raise ImportError(f"{name} of {module} is not available in lightning_ding: {home.REFUSED[name]}")
    if name not in home.__all__:
        raise ImportError(f"{name} of {module} is not available in lightning_ding; {ELSEWHERE}")
    return getattr(home, name)


class _Names(Loader):
    """Makes a module whose names are looked up when they are used."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its functions."""
        full = module.__name__
        if full == ROOT:
            module.__dict__.update(__version__="0.5.3", __all__=list(PACKAGES))
            return
        home = home_of(full)
        module.__class__ = _Package

        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {full!r} has no attribute {name!r}")
            return find(full, name)

        module.__dict__.update(__getattr__=look_up, __dir__=lambda: sorted(home.__all__), __all__=list(home.__all__))


class _Package(ModuleType):
    """A module whose names go before its modules of the same name, such as ``task`` of ``ding.framework``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)


def _is_theirs(name: str) -> bool:
    return name == ROOT or name.startswith(f"{ROOT}.")


class _Finder(MetaPathFinder):
    """Finds ``ding`` and its modules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of DI-engine; None for others."""
        if not _is_theirs(name):
            return None
        if name != ROOT:
            home_of(name)
        return ModuleSpec(name, _Names(), is_package=True)


def install() -> None:
    """Let ``import ding...`` find the names of this package; a second call has no effect.

    Raises:
        ImportError: If DI-engine itself is imported already.
    """
    there = sys.modules.get(ROOT)
    if there is not None and not isinstance(getattr(there.__spec__, "loader", None), _Names):
        place = getattr(there, "__file__", ROOT)
        raise ImportError(f"DI-engine is imported already, from {place}: import lightning_ding.di_engine.as_ding first")
    if not _is_installed():
        sys.meta_path.insert(0, _Finder())


def _is_installed() -> bool:
    return any(type(one) is _Finder for one in sys.meta_path)


class _FinderOfBlock(_Finder):
    """The finder of :func:`names_of_ding`."""


@contextmanager
def names_of_ding() -> Iterator[None]:
    """Let ``import ding...`` find the names of this package in a ``with`` block, and forget them after it.

    Where DI-engine itself is imported already, or :func:`install` was called, all stays as it is.
    """
    if ROOT in sys.modules or _is_installed():
        yield
        return
    finder = _FinderOfBlock()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path[:] = [one for one in sys.meta_path if one is not finder]
        for name in [] if _is_installed() else filter(_is_theirs, list(sys.modules)):
            del sys.modules[name]
