"""A learner on several ranks, each of which is an actor: torch computes in all of them together."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from lightning_ding.config import require
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.pending import Pending
from lightning_ding.distributed.ray.worker_set import Needs, in_bundle, make_group, make_worker, remove_group, why_ended

logger = logging.getLogger(__name__)

GPU_ACCELERATORS = ("gpu", "cuda")


def number_of_ranks(cfg: ParallelConfig) -> int:
    """Return the number of ranks: ``devices`` times ``num_nodes`` of the Trainer with ``multi_gpu``, otherwise 1.

    Raises:
        ValueError: If one of the two is not a number.
    """
    if not cfg.system.learner.multi_gpu:
        return 1
    trainer, ranks = cfg.system.learner.trainer, 1
    for name in ("devices", "num_nodes"):
        value = trainer.get(name, 1)
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(good, f"system.learner.trainer.{name}", "an integer >= 1 with multi_gpu over Ray", value)
        ranks *= value
    return ranks


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


class LearnerRanks:
    """The ranks of a learner, which are restarted together, because none of them can continue without the others.

    Their resources are reserved in one placement group with the strategy PACK. Rank zero holds the store through which
    the ranks meet, in the place of torchrun's. After the death or failure of a rank, all actors are killed and others
    started, which resume from the newest checkpoint.

    Args:
        cfg: Config of the run, from :func:`with_a_device_for_each_actor`.
        ranks: Number of ranks, >= 2.
        pending: Where actors are reported that Ray cannot start.
    """

    def __init__(self, cfg: ParallelConfig, ranks: int, pending: Pending) -> None:
        self._ray = import_ray()
        self._cfg = cfg
        self._ranks = ranks
        self._pending = pending
        self._needs = needs_of_learner(cfg)
        self._actors: list[Any] = []
        self._runs: dict[Any, int] = {}
        self._restarts = 0
        self._is_over = False
        self._group: Any = None

    def start(self) -> None:
        """Start all ranks."""
        self._group = make_group(self._needs, self._ranks, "PACK")
        self._start()
        for rank, actor in enumerate(self._actors):
            self._pending.add(self._name(rank), actor, self._needs)

    def look(self) -> None:
        """Restart all ranks if one of them has died or failed.

        Raises:
            RuntimeError: If that happens too often.
            ValueError: If the config makes a learner impossible.
        """
        if not self._runs:
            return
        ended, _ = self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)
        reasons = {self._runs.pop(ref): self._why(ref) for ref in ended}
        self._is_over = self._is_over or (0 in reasons and reasons[0] is None)
        failed = {rank: reason for rank, reason in reasons.items() if reason is not None}
        if failed and not self._is_over:
            rank, reason = min(failed.items())
            self._restart(f"rank {rank} of the learner ended: {reason}")

    def wait(self, timeout: float) -> None:
        """Wait until all ranks have ended.

        Args:
            timeout: Longest time to wait, in seconds.
        """
        if self._runs:
            self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=timeout)

    def close(self) -> None:
        """Kill all ranks, and release what was reserved."""
        self._kill()
        if self._group is not None:
            remove_group(self._group)

    def _start(self) -> None:
        self._actors = [
            make_worker(self._cfg, "learner", self._name(rank), self._needs, scheduling_strategy=self._bundle(rank))
            for rank in range(self._ranks)
        ]
        address = self._actors[0].open_store.remote()
        runs = [actor.run_rank.remote(rank, self._ranks, address) for rank, actor in enumerate(self._actors)]
        self._runs = {ref: rank for rank, ref in enumerate(runs)}

    def _restart(self, why: str) -> None:
        allowed = self._cfg.system.restarts
        if self._restarts >= allowed:
            raise RuntimeError(f"the learner was restarted {allowed} times: {why}")
        self._restarts += 1
        logger.warning("all ranks of the learner are restarted: %s", why)
        self._kill()
        self._start()

    def _kill(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _name(self, rank: int) -> str:
        """Return the name of an actor; each start has new ones, because Ray frees the name of a dead actor later."""
        return f"learner {self._restarts}.{rank}"

    def _bundle(self, rank: int) -> Any:
        return in_bundle(self._group, rank)

    def _why(self, ref: Any) -> str | None:
        try:
            return why_ended(ref)
        except self._ray.exceptions.RayError as error:  # of this rank, or of rank zero, whose store it needs
            return type(error).__name__
