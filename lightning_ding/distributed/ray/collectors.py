"""The collectors of a run over Ray: spread over the nodes, and as many as the config or the cluster decides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.worker_set import Needs, WorkerSet, in_bundle, make_group, remove_group

logger = logging.getLogger(__name__)

NEEDS: Needs = {"CPU": 1}
"""Resources of a collector."""


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
        number: Number of collectors at the start.
        others: CPUs of coordinator and learner, if the number follows the cluster; otherwise None.
        set_tasks: Function that asks the coordinator for a number of collecting tasks, and returns the reference to
            its answer.
    """

    def __init__(self, workers: WorkerSet, number: int, others: int | None, set_tasks: Callable[[int], Any]) -> None:
        self._ray = import_ray()
        self._workers = workers
        self._others = others
        self._number = number
        self._set_tasks = set_tasks
        self._names: list[str] = []
        self._started = 0
        self._group: Any = None
        self._tasks: int | None = None  # what the coordinator has confirmed
        self._asked: tuple[int, Any] | None = None

    def start(self) -> None:
        """Start the collectors."""
        if self._others is None:
            self._group = make_group(NEEDS, self._number, "SPREAD")
        for index in range(self._number):
            self._start_one(in_bundle(self._group, index) if self._group is not None else "SPREAD", index == 0)

    def look(self) -> None:
        """Start or stop collectors if the size of the cluster has changed, and set the number of collecting tasks."""
        if self._others is None:
            return
        wanted = room_for_collectors(self._ray.cluster_resources().get("CPU", 0), self._others)
        if wanted != len(self._names):
            logger.info("%d collectors instead of %d, because the cluster has changed", wanted, len(self._names))
        while len(self._names) < wanted:
            self._start_one("SPREAD", is_needed=False)
        for name in self._most_dispensable()[: len(self._names) - wanted]:
            self._workers.stop(name)
            self._names.remove(name)
        self._report()

    def close(self) -> None:
        """Release what was reserved."""
        if self._group is not None:
            remove_group(self._group)

    def _start_one(self, strategy: Any, is_needed: bool) -> None:
        self._started += 1
        name = f"collector {self._started}"
        is_needed = is_needed or self._others is None
        self._workers.start(name, "collector", NEEDS, is_needed, scheduling_strategy=strategy)
        self._names.append(name)

    def _most_dispensable(self) -> list[str]:
        """Return the collectors in the order in which they are stopped: those without a node first, then the newest."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        newest_first = self._names[::-1]
        return sorted(newest_first, key=lambda name: self._workers.node(name) in alive)

    def _report(self) -> None:
        """Ask the coordinator for as many tasks as there are collectors, until it has confirmed the number."""
        if self._asked is not None:
            number, ref = self._asked
            if not self._ray.wait([ref], timeout=0)[0]:
                return
            self._asked = None
            try:
                self._tasks = number if "reply" in self._ray.get(ref) else None
            except self._ray.exceptions.RayError as error:  # the coordinator is being restarted
                logger.info("the coordinator does not answer (%s); trying again", type(error).__name__)
        if self._tasks != len(self._names):
            self._asked = (len(self._names), self._set_tasks(len(self._names)))
