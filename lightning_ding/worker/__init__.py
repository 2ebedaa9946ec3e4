"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and contain no algorithm.

The workers of distributed runs are imported from ``lightning_ding.distributed`` when they are used.
"""

from lightning_ding.utils.foreign import attach

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
    "create_comm_collector",
    "create_comm_learner",
    "create_parallel_collector",
    "create_parallel_commander",
    "get_parallel_collector_cls",
    "get_parallel_commander_cls",
)
_HOMES = {"BaseSerialCommander": "di_engine.commander", **dict.fromkeys(_DISTRIBUTED, "distributed")}
"""Modules of names that users of other frameworks look for here."""
__getattr__, __dir__, __all__ = attach(__name__, _HOMES, __file__)
