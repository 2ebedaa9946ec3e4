"""The workers of a run as Ray's actors: how they are placed and restarted, and why they end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray, namespace_of
from lightning_ding.distributed.ray.workers import WorkerActor
from lightning_ding.distributed.transport import Role

logger = logging.getLogger(__name__)

Needs = Mapping[str, float]
"""Resources of an actor, such as ``{"CPU": 1, "GPU": 1}``."""
PATIENCE = 30.0  # seconds before a warning that actors have not started


@dataclass
class RayWorker:
    """A collector, or a learner with all of its ranks, which are restarted together.

    None of the ranks can continue without the others. Rank zero holds the store through which they meet, in the place
    of torchrun's.
    """

    name: str
    role: Role
    needs: Needs
    """Resources of each actor."""
    strategies: Sequence[Any]
    """Ray's scheduling strategy of each rank."""
    actors: list[Any] = field(default_factory=list)
    failures: int = 0
    is_over: bool = False
    """Whether rank zero has ended because the run is over."""

    @property
    def names(self) -> list[str]:
        """Names of the actors; ranks have new ones at each start, because Ray frees the name of a dead actor later."""
        ranks = len(self.strategies)
        return [self.name] if ranks == 1 else [f"{self.role} {self.failures}.{rank}" for rank in range(ranks)]


class WorkerSet:
    """The workers of a run.

    Ray restarts a worker whose process or node has died, and calls it again; one that fails is called again here. The
    ranks of a learner are started again together in both cases, from the newest checkpoint.

    Args:
        cfg: Config of the run.
    """

    def __init__(self, cfg: ParallelConfig) -> None:
        self._ray = import_ray()
        self._cfg = cfg
        self._workers: dict[str, RayWorker] = {}
        self._runs: dict[Any, tuple[RayWorker, int]] = {}  # rank of each call that has not ended
        self._nodes: dict[str, Any] = {}  # references to the node on which each worker was first started
        self._groups: list[Any] = []
        self.pending = Pending(cfg.system.reconnect_timeout)

    def reserve(self, needs: Needs, count: int, strategy: str) -> list[Any]:
        """Reserve resources in a placement group, and return the scheduling strategies of its bundles.

        Args:
            needs: Resources of each bundle.
            count: Number of bundles.
            strategy: ``"SPREAD"`` over as many nodes as possible, or ``"PACK"`` on as few as possible.
        """
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {kind: amount for kind, amount in needs.items() if amount}
        group = placement_group([dict(bundle) for _ in range(count)], strategy=strategy)
        self._groups.append(group)
        return [PlacementGroupSchedulingStrategy(group, index) for index in range(count)]

    def start(
        self, name: str, role: Role, needs: Needs, strategies: Sequence[Any] = ("DEFAULT",), is_needed: bool = True
    ) -> None:
        """Start a worker.

        Args:
            name: Name of the worker, and of its actor in the namespace of the run.
            role: Role of the worker.
            needs: Resources of each actor.
            strategies: Ray's scheduling strategies of its ranks.
            is_needed: Whether the run fails if Ray cannot start the worker.
        """
        worker = self._workers[name] = RayWorker(name, role, needs, strategies)
        self._make(worker)
        if is_needed:
            self._await(worker)
        self._nodes[name] = worker.actors[0].node.remote()
        self._call(worker)  # last, because an actor answers one call after the other

    def stop(self, name: str) -> None:
        """Kill a worker, which is not restarted; another one gets its task when its lease ends."""
        self._kill(self._workers.pop(name))
        self._nodes.pop(name)

    def node(self, name: str) -> str | None:
        """Return the id of the node on which a worker was first started; None if it was not started yet."""
        ref = self._nodes[name]
        if not self._ray.wait([ref], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(ref))
        except self._ray.exceptions.RayError:
            return None

    def look(self) -> None:
        """Run workers again that ended before the run was over.

        Raises:
            RuntimeError: If a worker ended too often, or Ray has not started one in time.
            ValueError: If the config makes a worker impossible.
        """
        self.pending.look()
        ended, _ = self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0) if self._runs else ([], [])
        for ref in sorted(ended, key=lambda ref: self._runs[ref][1]):  # rank zero first, whose end may end all
            if ref not in self._runs:
                continue  # the worker has been restarted since
            worker, rank = self._runs.pop(ref)
            reason = self._why(worker, ref)
            worker.is_over = worker.is_over or (reason is None and rank == 0)
            if reason is not None and not worker.is_over:
                self._restart(worker, reason)

    def wait(self, timeout: float) -> None:
        """Wait until all workers have ended, but not longer than ``timeout`` seconds."""
        if self._runs:
            self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=timeout)

    def close(self) -> None:
        """Kill all workers, and release what was reserved."""
        for worker in self._workers.values():
            self._kill(worker)
        if self._groups:
            from ray.util.placement_group import remove_placement_group

            for group in self._groups:
                remove_placement_group(group)

    def _make(self, worker: RayWorker) -> None:
        """Start the actors of a worker."""
        known: dict[str, Any] = {"num_cpus": worker.needs.get("CPU", 0), "num_gpus": worker.needs.get("GPU", 0)}
        known |= {"namespace": namespace_of(self._cfg.main.exp_name)}
        if len(worker.strategies) == 1:  # Ray calls run() in the new process, and several times until it is there
            known |= {"max_restarts": self._cfg.system.restarts, "max_task_retries": -1}
        actor = self._ray.remote(WorkerActor)
        worker.actors = [
            actor.options(name=name, scheduling_strategy=strategy, **known).remote(self._cfg, worker.role)
            for name, strategy in zip(worker.names, worker.strategies, strict=True)
        ]

    def _call(self, worker: RayWorker) -> None:
        """Call the actors of a worker."""
        ranks = len(worker.actors)
        options = [] if ranks == 1 else [ranks, worker.actors[0].open_store.remote()]
        for rank, actor in enumerate(worker.actors):
            self._runs[actor.run.remote(rank, *options)] = (worker, rank)

    def _restart(self, worker: RayWorker, reason: str) -> None:
        worker.failures += 1
        if worker.failures > self._cfg.system.restarts:
            raise RuntimeError(f"{worker.name} ended more than {self._cfg.system.restarts} times: {reason}")
        logger.warning("%s is restarted: %s", worker.name, reason)
        if len(worker.actors) > 1:
            self._kill(worker)
            self._make(worker)
            self._await(worker)
        self._call(worker)

    def _await(self, worker: RayWorker) -> None:
        """Report the actors of a worker if Ray cannot start them."""
        for name, actor in zip(worker.names, worker.actors, strict=True):
            self.pending.add(name, actor, worker.needs)

    def _kill(self, worker: RayWorker) -> None:
        self._runs = {ref: known for ref, known in self._runs.items() if known[0] is not worker}
        for actor in worker.actors:
            self._ray.kill(actor)

    def _why(self, worker: RayWorker, ref: Any) -> str | None:
        """Return why a call of a worker has ended; None if it ended because the run is over.

        Raises:
            RuntimeError: If its actor has died and Ray does not restart it.
        """
        errors = self._ray.exceptions
        try:
            return why_ended(ref)
        except errors.RayActorError as error:
            if len(worker.actors) == 1:
                raise not_restarted(worker.name, error) from error
            return type(error).__name__
        except errors.RayError as error:  # of rank zero, whose store this rank needs
            return type(error).__name__


def why_ended(ref: Any) -> str | None:
    """Return why a call of ``WorkerActor.run`` has ended; None if it ended because the run is over.

    Raises:
        RayActorError: If the actor is dead.
        ValueError: If the config makes the worker impossible.
        ImportError: If a package is missing.
    """
    ray = import_ray()
    try:
        code = ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        return str(error).strip().splitlines()[-1]
    if isinstance(code, Exception):  # a restart would fail in the same way
        raise code
    return None if code == 0 else f"exit code {code}"


def not_restarted(name: str, error: Exception) -> RuntimeError:
    """Return the error that ends a run because an actor is dead for good.

    Args:
        name: Name of the actor that died.
        error: Ray's error. The reason begins at its last line that begins with "The actor".
    """
    lines = [line.strip() for line in str(error).strip().splitlines()]
    begins = [number for number, line in enumerate(lines) if line.startswith("The actor ")]
    reason = " ".join(lines[begins[-1] :] if begins else lines)
    return RuntimeError(f"{name} died, and Ray does not restart it: {reason}")


class Pending:
    """Reports actors that Ray cannot start; Ray itself reports nothing.

    Args:
        timeout: Seconds after which waiting for an actor fails.
    """

    def __init__(self, timeout: float) -> None:
        self._ray = import_ray()
        self._timeout = timeout
        self._waiting: dict[Any, tuple[str, Needs]] = {}
        self._since = time.monotonic()
        self._has_warned = False

    def add(self, name: str, actor: Any, needs: Needs) -> None:
        """Wait for another actor, which needs resources such as ``{"CPU": 1}``."""
        self._waiting[actor.__ray_ready__.remote()] = (name, needs)
        self._since, self._has_warned = time.monotonic(), False

    def look(self) -> None:
        """Log a warning once if actors have not started for a while.

        Raises:
            RuntimeError: If an actor has not started in time.
        """
        if not self._waiting:
            return
        started, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in started:
            del self._waiting[ref]
        waited = time.monotonic() - self._since
        if self._waiting and waited >= self._timeout:
            raise RuntimeError(self._text(waited))
        if self._waiting and waited >= PATIENCE and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", self._text(waited))

    def _text(self, waited: float) -> str:
        needed: Counter[str] = Counter()
        for _, needs in self._waiting.values():
            needed.update(needs)
        whole, free = self._ray.cluster_resources(), self._ray.available_resources()
        parts = [
            f"{count:g} {kind} ({free.get(kind, 0):g} of {whole.get(kind, 0):g} free)"
            for kind, count in needed.items()
            if count
        ]
        names = ", ".join(name for name, _ in self._waiting.values())
        return f"Ray has not started {names} in {waited:.0f} s, for which it needs {' and '.join(parts)}"
