"""Parallel commanders by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.config import ConfigLike, resolve
from lightning_ding.distributed.commander.base import BaseParallelCommander
from lightning_ding.distributed.config import CommanderConfig, ParallelConfig
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY
from lightning_ding.worker.factory import get_class


def create_parallel_commander(cfg: ConfigLike[ParallelConfig] = None) -> BaseParallelCommander:
    """Return the commander that ``system.coordinator.commander.type`` of a whole run's config names.

    Raises:
        KeyError: If the type is not registered.
        ValueError: If the config does not fit it.
    """
    config = resolve(ParallelConfig, cfg)
    return get_parallel_commander_cls(config.system.coordinator.commander)(config)


def get_parallel_commander_cls(cfg: ConfigLike[CommanderConfig] | Any = None) -> type[BaseParallelCommander]:
    """Return the class of the commander that a commander section describes.

    Raises:
        KeyError: If the type is not registered.
    """
    found: type[BaseParallelCommander] = get_class(PARALLEL_COMMANDER_REGISTRY, cfg, default_type="solo")
    return found
