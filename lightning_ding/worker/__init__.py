"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and contain no algorithm.

The workers of distributed runs are imported from ``lightning_ding.distributed`` when they are used.
"""

# ruff: noqa: F403 - the packages below define ``__all__``

import importlib
from typing import Any

from lightning_ding.worker import buffer, collector, evaluator, learner
from lightning_ding.worker.aggregator import LearnerAggregator, merge_info
from lightning_ding.worker.base import create_comm_collector, create_comm_learner
from lightning_ding.worker.buffer import *
from lightning_ding.worker.collector import *
from lightning_ding.worker.commander import BaseSerialCommander
from lightning_ding.worker.evaluator import *
from lightning_ding.worker.learner import *

__all__ = ["BaseSerialCommander", "LearnerAggregator", "create_comm_collector", "create_comm_learner", "merge_info"]
__all__ += buffer.__all__
__all__ += collector.__all__
__all__ += evaluator.__all__
__all__ += learner.__all__

_DISTRIBUTED = (
    "BaseCommCollector",
    "BaseCommLearner",
    "BaseParallelCollector",
    "Coordinator",
    "FlaskFileSystemCollector",
    "FlaskFileSystemLearner",
    "MarineParallelCollector",
    "NaiveCollector",
    "ZerglingParallelCollector",
    "create_parallel_collector",
    "create_parallel_commander",
    "get_parallel_collector_cls",
    "get_parallel_commander_cls",
)
"""Names of ``lightning_ding.distributed`` that DI-engine has in its package of workers."""
__all__ += _DISTRIBUTED


def __getattr__(name: str) -> Any:
    """Import a worker of distributed runs, which imports policies and callbacks, too."""
    if name in _DISTRIBUTED:
        return getattr(importlib.import_module("lightning_ding.distributed"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the module, also of those that are imported when they are used."""
    return sorted({*globals(), *_DISTRIBUTED})
