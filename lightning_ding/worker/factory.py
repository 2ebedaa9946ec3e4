"""Building a worker from its config section; the factories of each kind are its faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from lightning_ding.config import to_dict
from lightning_ding.registry import Registry, import_modules


def get_class(registry: Registry[Any], cfg: Any, default_type: str | None = None) -> Any:
    """Return the class that a section's ``type`` names, after importing its ``import_names``.

    Args:
        registry: Where to look.
        cfg: A config dataclass or a mapping; None is one without a key.
        default_type: Taken when ``cfg`` has no ``type``.

    Raises:
        KeyError: If there is no type, or it is not registered.
        TypeError: If ``cfg`` is something else.
    """
    section: Any = {} if cfg is None else to_dict(cfg) if is_dataclass(cfg) else cfg
    if not isinstance(section, Mapping):
        raise TypeError(f"a {registry.kind} config must be a dataclass or a mapping, got {type(cfg).__name__}")
    import_modules(section.get("import_names", ()))
    name = section.get("type", default_type)
    if name is None:
        raise KeyError(
            f"a {registry.kind} config needs a 'type', one of {list(registry)}; got the keys {sorted(section)}"
        )
    return registry.get(name)
