"""Commanders: they say which task comes next, with which weights, and when a run is over."""

from lightning_ding.distributed.commander.base import BaseParallelCommander
from lightning_ding.distributed.commander.factory import create_parallel_commander, get_parallel_commander_cls
from lightning_ding.distributed.commander.league import League
from lightning_ding.distributed.commander.naive import NaiveParallelCommander
from lightning_ding.distributed.commander.one_vs_one import OneVsOneParallelCommander
from lightning_ding.distributed.commander.solo import SoloParallelCommander

__all__ = [
    "BaseParallelCommander",
    "League",
    "NaiveParallelCommander",
    "OneVsOneParallelCommander",
    "SoloParallelCommander",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
