"""Parallel collectors by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.registry import PARALLEL_COLLECTOR_REGISTRY
from lightning_ding.worker.factory import get_class


def create_parallel_collector(cfg: Any, **kwargs: Any) -> BaseParallelCollector:
    """Return the collector that ``cfg.type`` names, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_parallel_collector_cls(cfg)(cfg, **kwargs)


def get_parallel_collector_cls(cfg: Any) -> type[BaseParallelCollector]:
    """Return the class of the collector that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    found: type[BaseParallelCollector] = get_class(PARALLEL_COLLECTOR_REGISTRY, cfg)
    return found
