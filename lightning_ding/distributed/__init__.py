"""Distributed runs: a coordinator, learners and collectors in separate processes, on one machine or several.

Only the coordinator listens. Workers connect to it, request tasks and send the results, over one of the transports
``flask_fs`` and ``ray``. Modules that need an extra are imported when they are used.
"""

from typing import TYPE_CHECKING

from lightning_ding.distributed.collector.base import (
    BaseParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from lightning_ding.distributed.collector.marine import MarineParallelCollector
from lightning_ding.distributed.collector.zergling import ZerglingParallelCollector
from lightning_ding.distributed.commander.base import (
    BaseParallelCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from lightning_ding.distributed.commander.one_vs_one import OneVsOneParallelCommander
from lightning_ding.distributed.commander.solo import SoloParallelCommander
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.transport import Block, Channel, CoordinatorGoneError, LeaseLostError, Refusal, Store
from lightning_ding.utils.foreign import attach

if TYPE_CHECKING:
    from lightning_ding.distributed.flask_fs.channel import FlaskChannel as FlaskChannel

__all__ = [
    "BaseCommCollector",
    "BaseCommLearner",
    "BaseParallelCollector",
    "BaseParallelCommander",
    "Block",
    "Channel",
    "Coordinator",
    "CoordinatorGoneError",
    "FlaskFileSystemCollector",
    "FlaskFileSystemLearner",
    "InProcessChannel",
    "LeaseLostError",
    "MarineParallelCollector",
    "MemoryStore",
    "NaiveCollector",
    "NaiveParallelCommander",
    "OneVsOneParallelCommander",
    "ParallelConfig",
    "RayCollector",
    "RayLearner",
    "Refusal",
    "SendLearnInfoHook",
    "SendPolicyHook",
    "SoloParallelCommander",
    "Store",
    "ZerglingParallelCollector",
    "create_comm_collector",
    "create_comm_learner",
    "create_parallel_collector",
    "create_parallel_commander",
    "get_parallel_collector_cls",
    "get_parallel_commander_cls",
    "run_on_ray",
]

_HOMES = {
    "BaseCommLearner": "di_engine.comm_learner",
    "FlaskChannel": "distributed.flask_fs.channel",
    "NaiveCollector": "di_engine.naive_collector",
    "NaiveParallelCommander": "di_engine.parallel_commanders",
    "SendLearnInfoHook": "di_engine.parallel_forms",
    "SendPolicyHook": "di_engine.parallel_forms",
    **dict.fromkeys(
        (
            *("BaseCommCollector", "FlaskFileSystemCollector", "FlaskFileSystemLearner", "RayCollector", "RayLearner"),
            *("create_comm_collector", "create_comm_learner"),
        ),
        "di_engine.comm_workers",
    ),
}
"""Modules of names that are imported when they are used."""
__getattr__ = attach(__name__, _HOMES)[0]
