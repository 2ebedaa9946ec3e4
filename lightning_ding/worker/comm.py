"""Comm collectors and comm learners by name: what binds a collector or a learner to a transport.

They register themselves; a config's ``import_names`` says which module does.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
from lightning_ding.worker.factory import get_class


def create_comm_collector(cfg: Any) -> Any:
    """Return the comm collector that ``cfg.type`` names, made with ``cfg``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_class(COMM_COLLECTOR_REGISTRY, cfg)(cfg)


def create_comm_learner(cfg: Any) -> Any:
    """Return the comm learner that ``cfg.type`` names, made with ``cfg``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_class(COMM_LEARNER_REGISTRY, cfg)(cfg)
