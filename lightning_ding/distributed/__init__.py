"""Distributed runs: a coordinator, learners and collectors in processes of their own, on one machine or many.

Only the coordinator listens. Workers dial it, ask for tasks, and answer them; ``flask_fs`` and ``ray`` are two ways of
doing so. What needs an extra is imported when it is used.
"""

from typing import TYPE_CHECKING, Any

from lightning_ding.distributed.channel import Block, Channel, Store
from lightning_ding.distributed.collector import (
    BaseParallelCollector,
    MarineParallelCollector,
    NaiveCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from lightning_ding.distributed.comm_collector import BaseCommCollector
from lightning_ding.distributed.comm_learner import BaseCommLearner
from lightning_ding.distributed.commander import (
    BaseParallelCommander,
    NaiveParallelCommander,
    OneVsOneParallelCommander,
    SoloParallelCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator import Coordinator
from lightning_ding.distributed.errors import CoordinatorGoneError, LeaseLostError, Refusal
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.ray.workers import RayCollector, RayLearner
from lightning_ding.distributed.workers import FlaskFileSystemCollector, FlaskFileSystemLearner
from lightning_ding.worker.comm import create_comm_collector, create_comm_learner

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


def __getattr__(name: str) -> Any:
    """Return what needs an extra.

    Raises:
        ModuleNotFoundError: If the extra is not installed; the message says how to get it.
    """
    if name == "FlaskChannel":
        from lightning_ding.distributed.flask_fs.channel import FlaskChannel

        return FlaskChannel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
