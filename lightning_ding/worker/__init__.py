"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and contain no algorithm.

The workers of distributed runs are imported from ``lightning_ding.distributed`` when they are used.
"""

import importlib
from typing import Any

import lazy_loader

_of_this_package, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
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
    """Import what has the name."""
    if name in _DISTRIBUTED:
        return getattr(importlib.import_module("lightning_ding.distributed"), name)
    return _of_this_package(name)


def __dir__() -> list[str]:
    """Return the public names, also of what is imported when it is used."""
    return sorted(__all__)
