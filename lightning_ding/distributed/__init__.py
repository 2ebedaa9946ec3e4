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
from lightning_ding.distributed.comm_worker.collector import BaseCommCollector
from lightning_ding.distributed.comm_worker.learner import BaseCommLearner
from lightning_ding.distributed.comm_worker.role import create_comm_collector, create_comm_learner
from lightning_ding.distributed.commander.base import (
    BaseParallelCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from lightning_ding.distributed.commander.one_vs_one import OneVsOneParallelCommander
from lightning_ding.distributed.commander.solo import SoloParallelCommander
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.flask_fs.transport import FlaskFileSystemCollector, FlaskFileSystemLearner
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.transport import (
    TRANSPORTS,
    Block,
    Channel,
    CoordinatorGoneError,
    LeaseLostError,
    Refusal,
    Store,
)
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
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

RayCollector = BaseCommCollector.over("ray", "RayCollector", __name__)
RayLearner = BaseCommLearner.over("ray", "RayLearner", __name__)


def _register_transports() -> None:
    """Register a comm collector and a comm learner for each transport, by its name."""
    collectors = (COMM_COLLECTOR_REGISTRY, BaseCommCollector, (FlaskFileSystemCollector, RayCollector))
    learners = (COMM_LEARNER_REGISTRY, BaseCommLearner, (FlaskFileSystemLearner, RayLearner))
    for registry, base, exported in (collectors, learners):
        known = {one.transport: one for one in exported}
        for transport in TRANSPORTS:
            registry.register(transport)(known.get(transport) or base.over(transport, base.__name__, base.__module__))


_register_transports()


_HOMES = {
    "FlaskChannel": "distributed.flask_fs.channel",
    "NaiveCollector": "di_engine.naive_collector",
    "NaiveParallelCommander": "di_engine.parallel_commanders",
    "SendLearnInfoHook": "di_engine.parallel_forms",
    "SendPolicyHook": "di_engine.parallel_forms",
}
"""Modules of names that are imported when they are used; the first one needs an extra."""
__getattr__ = attach(__name__, _HOMES)[0]
