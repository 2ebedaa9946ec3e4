"""Serial collectors by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.collector.base import ISerialCollector
from lightning_ding.worker.factory import get_class


def create_serial_collector(cfg: Any, **kwargs: Any) -> ISerialCollector:
    """Return the collector that ``cfg.type`` names, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_serial_collector_cls(cfg)(cfg, **kwargs)  # type: ignore[call-arg]


def get_serial_collector_cls(cfg: Any) -> type[ISerialCollector]:
    """Return the class of the collector that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    found: type[ISerialCollector] = get_class(SERIAL_COLLECTOR_REGISTRY, cfg)
    return found
