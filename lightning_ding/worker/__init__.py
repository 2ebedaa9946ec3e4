"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and contain no algorithm.

The workers of distributed runs are imported from ``lightning_ding.distributed`` when they are used.
"""

import lazy_loader

from lightning_ding.utils.foreign import with_foreign

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
_HOMES = {"BaseSerialCommander": "di_engine.commander", **dict.fromkeys(_DISTRIBUTED, "distributed")}
"""Modules of names that users of other frameworks look for here."""
__all__ += [*_HOMES]
__getattr__ = with_foreign(__name__, _HOMES, _of_this_package)


def __dir__() -> list[str]:
    """Return the public names, also of what is imported when it is used."""
    return sorted(__all__)
