"""Parallel collectors: what a worker does with a collecting or an evaluating task."""

from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.distributed.collector.factory import create_parallel_collector, get_parallel_collector_cls
from lightning_ding.distributed.collector.marine import MarineParallelCollector
from lightning_ding.distributed.collector.naive import NaiveCollector
from lightning_ding.distributed.collector.zergling import ZerglingParallelCollector

__all__ = [
    "BaseParallelCollector",
    "MarineParallelCollector",
    "NaiveCollector",
    "ZerglingParallelCollector",
    "create_parallel_collector",
    "get_parallel_collector_cls",
]
