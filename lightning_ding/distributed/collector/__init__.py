"""Parallel collectors, which do the collecting and evaluating tasks of a worker."""

from lightning_ding.distributed.collector.base import (
    BaseParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from lightning_ding.distributed.collector.marine import MarineParallelCollector
from lightning_ding.distributed.collector.zergling import ZerglingParallelCollector

__all__ = [
    "BaseParallelCollector",
    "MarineParallelCollector",
    "ZerglingParallelCollector",
    "create_parallel_collector",
    "get_parallel_collector_cls",
]
