"""Access to :mod:`lightning_ding.di_engine`, which is imported only when a run needs it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

POLICY_NAMES = frozenset(
    f"_{name}"
    for name in (
        *("bp_update_sync", "cfg", "collect_model", "cuda", "enable_field", "eval_model", "learn_model", "model"),
        *("on_policy", "optimizer", "rank", "target_model", "create_model", "get_attribute", "get_batch_size"),
        *("get_n_episode", "get_n_sample", "set_attribute"),
    )
)
"""Private names of a policy that ``di_engine.policies.names`` knows."""


def foreign(name: str) -> Any:
    """Return a module of ``lightning_ding.di_engine``."""
    return importlib.import_module(f"lightning_ding.di_engine.{name}")


def attach(package: str, homes: Mapping[str, str], stub: str | None = None) -> tuple[Any, Any, list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports names when they are used.

    Args:
        package: Name of the package.
        homes: For each name of another module, that module without the leading ``lightning_ding.``.
        stub: ``__file__`` of a package with a stub, which lists its own names.
    """
    own, names = cast(Any, None), list[str]()
    if stub is not None:
        import lazy_loader  # later, because the help of the command line does without

        own, _, names = lazy_loader.attach_stub(package, stub)

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"lightning_ding.{homes[name]}"), name)
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return own(name)

    everything = [*names, *homes]
    return find, lambda: sorted(everything), everything
