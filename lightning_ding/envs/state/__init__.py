"""Reading the state of envs as plain data, and restoring it in other envs."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

LIBRARIES = frozenset({"gymnasium", "lightning", "lightning_ding", "numpy", "torch", *sys.stdlib_module_names})
"""Packages that hold no state of an env."""


def package_of(module: str | None) -> str:
    """Return the package of a module."""
    return (module or "builtins").partition(".")[0]


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, by name, including those in ``__slots__``."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = vars(kind).get(_mangled(name, kind))
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, slot.__name__):
                found[slot.__name__] = getattr(value, slot.__name__)
    return found


def _mangled(name: str, kind: type) -> str:
    """Return the name of a slot in the namespace of its class, which differs for ``__private`` ones."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


@contextmanager
def unchanged_random_numbers() -> Iterator[None]:
    """Restore the global random number generators at the end, because an env may draw from them."""
    torch: Any = sys.modules.get("torch")  # not imported in env processes
    python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        if of_torch is not None:
            torch.set_rng_state(of_torch)
