"""Workers as Ray's actors: how they are made, how Ray restarts them, and why they end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray, namespace_of
from lightning_ding.distributed.ray.pending import Pending
from lightning_ding.distributed.ray.workers import WorkerActor
from lightning_ding.distributed.transport import Role

logger = logging.getLogger(__name__)

Needs = Mapping[str, float]
"""Resources of an actor, such as ``{"CPU": 1, "GPU": 1}``."""


def make_worker(cfg: ParallelConfig, role: Role, name: str, needs: Needs, **options: Any) -> Any:
    """Return the handle of a new ``WorkerActor``.

    Args:
        cfg: Config of the run.
        role: Role of the worker.
        name: Name of the actor in the namespace of the run.
        needs: Resources of the actor.
        options: Further options of an actor of Ray.
    """
    amounts = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0)}
    known = {"name": name, "namespace": namespace_of(cfg.main.exp_name), **amounts}
    return import_ray().remote(WorkerActor).options(**known, **options).remote(cfg, role)


def in_bundle(group: Any, index: int) -> Any:
    """Return the scheduling strategy that places an actor in a bundle of a placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def make_group(needs: Needs, count: int, strategy: str) -> Any:
    """Return a placement group of equal bundles; Ray reserves their resources as soon as there are enough for all.

    Args:
        needs: Resources of each bundle.
        count: Number of bundles.
        strategy: ``"SPREAD"`` over as many nodes as possible, or ``"PACK"`` on as few as possible.
    """
    from ray.util.placement_group import placement_group

    whole = {kind: amount for kind, amount in needs.items() if amount}
    return placement_group([dict(whole) for _ in range(count)], strategy=strategy)


def remove_group(group: Any) -> None:
    """Release the resources of a placement group; actors in it are killed."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)


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


class WorkerSet:
    """Workers that are restarted one by one: by Ray if their process or their node dies, here if they fail.

    Args:
        cfg: Config of the run.
        pending: Where actors are reported that Ray cannot start.
    """

    def __init__(self, cfg: ParallelConfig, pending: Pending) -> None:
        self._ray = import_ray()
        self._cfg = cfg
        self._pending = pending
        self._actors: dict[str, Any] = {}
        self._runs: dict[Any, str] = {}
        self._failures: dict[str, int] = {}
        self._nodes: dict[str, Any] = {}  # references to the node on which each worker was first started

    def start(self, name: str, role: Role, needs: Needs, is_needed: bool = True, **options: Any) -> None:
        """Start a worker.

        Args:
            name: Name of the actor.
            role: Role of the worker.
            needs: Resources of the actor.
            is_needed: Whether the run fails if Ray cannot start the actor.
            options: Further options of an actor of Ray.
        """
        options |= {"max_restarts": self._cfg.system.restarts}
        options |= {"max_task_retries": -1}  # Ray calls run() in the new process, and several times until it is there
        actor = self._actors[name] = make_worker(self._cfg, role, name, needs, **options)
        if is_needed:
            self._pending.add(name, actor, needs)
        self._nodes[name] = actor.node.remote()
        self._run(name)

    def stop(self, name: str) -> None:
        """Kill a worker, which is not restarted; another one gets its task when its lease ends."""
        self._ray.kill(self._actors.pop(name))
        self._nodes.pop(name)
        self._runs = {ref: known for ref, known in self._runs.items() if known != name}

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
            RuntimeError: If a worker ended too often.
            ValueError: If the config makes a worker impossible.
        """
        if not self._runs:
            return
        ended, _ = self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)
        for ref in ended:
            name = self._runs.pop(ref)
            if (reason := self._why(name, ref)) is None:
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] > self._cfg.system.restarts:
                raise RuntimeError(f"{name} ended more than {self._cfg.system.restarts} times: {reason}")
            logger.warning("%s is restarted: %s", name, reason)
            self._run(name)

    def wait(self, timeout: float) -> None:
        """Wait until all workers have ended.

        Args:
            timeout: Longest time to wait, in seconds.
        """
        if self._runs:
            self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=timeout)

    def close(self) -> None:
        """Kill all workers."""
        for actor in self._actors.values():
            self._ray.kill(actor)

    def _run(self, name: str) -> None:
        self._runs[self._actors[name].run.remote()] = name

    def _why(self, name: str, ref: Any) -> str | None:
        try:
            return why_ended(ref)
        except self._ray.exceptions.RayActorError as error:
            raise not_restarted(name, error) from error
