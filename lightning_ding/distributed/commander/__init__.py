"""Commanders, which decide on the next task, its weights, and the end of a run."""

from lightning_ding.distributed.commander.base import (
    BaseParallelCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from lightning_ding.distributed.commander.one_vs_one import League, OneVsOneParallelCommander
from lightning_ding.distributed.commander.solo import SoloParallelCommander

__all__ = [
    "BaseParallelCommander",
    "League",
    "OneVsOneParallelCommander",
    "SoloParallelCommander",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
