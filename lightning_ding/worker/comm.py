"""Comm collectors and comm learners by name: what binds a collector or a learner to a transport.

They register themselves; a config's ``import_names`` says which module does, for those of your own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from lightning_ding.config import to_dict
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
from lightning_ding.worker.factory import get_class


def create_comm_collector(cfg: Any, **kwargs: Any) -> Any:
    """Return the comm collector that ``cfg.type``, or ``cfg.system.transport``, names.

    Args:
        cfg: What it is made with.
        kwargs: Further arguments of it, such as ``host`` and ``port``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_class(COMM_COLLECTOR_REGISTRY, _named(cfg))(cfg, **kwargs)


def create_comm_learner(cfg: Any, **kwargs: Any) -> Any:
    """Return the comm learner that ``cfg.type``, or ``cfg.system.transport``, names.

    Args:
        cfg: What it is made with.
        kwargs: Further arguments of it, such as ``host`` and ``port``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_class(COMM_LEARNER_REGISTRY, _named(cfg))(cfg, **kwargs)


def _named(cfg: Any) -> Any:
    """Return what holds the ``type``; a whole distributed config calls it its transport."""
    section = to_dict(cfg) if is_dataclass(cfg) and not isinstance(cfg, type) else cfg
    if not isinstance(section, Mapping) or "type" in section:
        return section
    system = section.get("system")
    return {"type": system["transport"]} if isinstance(system, Mapping) and "transport" in system else section
