"""How many collectors and ranks of a learner a run over Ray has, what they need, and where collectors are placed."""

from __future__ import annotations

import logging
from dataclasses import replace

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.worker_set import Needs, WorkerSet

logger = logging.getLogger(__name__)

NEEDS: Needs = {"CPU": 1}
"""Resources of a collector."""
GPU_ACCELERATORS = ("gpu", "cuda")


def with_a_device_for_each_actor(cfg: ParallelConfig, ranks: int) -> ParallelConfig:
    """Return a config whose Trainer has one device on each of ``ranks`` nodes, as Ray gives one to each actor."""
    if not cfg.system.learner.multi_gpu:
        return cfg
    trainer = {**cfg.system.learner.trainer, "devices": 1, "num_nodes": ranks}
    return replace(cfg, system=replace(cfg.system, learner=replace(cfg.system.learner, trainer=trainer)))


def needs_of_learner(cfg: ParallelConfig) -> Needs:
    """Return the resources of a learner, or of each rank of it."""
    trainer = cfg.system.learner.trainer
    devices = trainer.get("devices", 1)
    gpus = devices if isinstance(devices, int) else 1
    return {"CPU": 1, "GPU": gpus if trainer.get("accelerator") in GPU_ACCELERATORS else 0}


def room_for_collectors(cpus: float, others: int) -> int:
    """Return the number of collectors for which a cluster has room, at least 1.

    Args:
        cpus: CPUs of the whole cluster.
        others: CPUs of coordinator and learner.

    Example:
        >>> room_for_collectors(8.0, 2), room_for_collectors(1.0, 2)
        (6, 1)
    """
    return max(1, int(cpus) - others)


class Collectors:
    """The collectors of a run.

    A fixed number of them is reserved in one placement group with the strategy SPREAD. Ray moves the bundles of a dead
    node to another one, as soon as there is room. If the number follows the cluster, it fills all CPUs, so nothing is
    reserved: coordinator and learner could not be restarted on another node otherwise.

    Args:
        workers: Set in which the collectors are started.
        number: Number of collectors; None if it follows the cluster.
        others: CPUs of coordinator and learner.
    """

    def __init__(self, workers: WorkerSet, number: int | None, others: int) -> None:
        self._ray = import_ray()
        self._workers = workers
        self._number = number
        self._others = others
        self._names: list[str] = []
        self._started = 0

    def start(self) -> None:
        """Start the collectors; a run whose number follows the cluster fails only without the first one."""
        if self._number is None:
            self._follow()
            return
        for strategy in self._workers.reserve(NEEDS, self._number, "SPREAD"):
            self._start_one(strategy)

    def look(self) -> int | None:
        """Start or stop collectors if the cluster has changed, and return their number; None if it is fixed."""
        if self._number is not None:
            return None
        self._follow()
        return len(self._names)

    def _follow(self) -> None:
        wanted = room_for_collectors(self._ray.cluster_resources().get("CPU", 0), self._others)
        if wanted != len(self._names) > 0:
            logger.info("%d collectors instead of %d, because the cluster has changed", wanted, len(self._names))
        while len(self._names) < wanted:
            self._start_one("SPREAD", is_needed=not self._names)
        if len(self._names) > wanted:  # those without a node are stopped first, then the newest
            alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
            newest_first = self._names[::-1]
            most_dispensable = sorted(newest_first, key=lambda name: self._workers.node(name) in alive)
            for name in most_dispensable[: len(self._names) - wanted]:
                self._workers.stop(name)
                self._names.remove(name)

    def _start_one(self, strategy: object, is_needed: bool = True) -> None:
        self._started += 1
        name = f"collector {self._started}"
        self._workers.start(name, "collector", NEEDS, [strategy], is_needed)
        self._names.append(name)
