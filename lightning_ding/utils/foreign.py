"""The door to :mod:`lightning_ding.di_engine`, which is loaded only for what comes from there."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def foreign(name: str) -> Any:
    """Return a module of ``lightning_ding.di_engine``."""
    return importlib.import_module(f"lightning_ding.di_engine.{name}")


def with_foreign(
    package: str, homes: Mapping[str, str], own: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that also has names of other packages.

    Args:
        package: Name of the package.
        homes: For each name of another package, its module without the leading ``lightning_ding.``.
        own: The ``__getattr__`` for other names, if the package imports its own ones when they are used.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"lightning_ding.{homes[name]}"), name)
        if own is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return own(name)

    return find
