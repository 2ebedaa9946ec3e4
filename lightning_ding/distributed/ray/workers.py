"""The actors of a run over Ray: the coordinator, which answers calls, and its workers, which make them."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from lightning_ding.distributed.comm_worker.ranks import environment_of_rank, open_store
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.folder import holds_run, locked
from lightning_ding.distributed.progress import REPORT, ProgressLine
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.transport import Handler, Message, Refusal

logger = logging.getLogger(__name__)

METRICS = {
    "env_step": "Env steps of all collectors",
    "train_iter": "Updates of the learner",
    "episode": "Episodes that ended",
    "return_mean": "Mean return of the newest 100 episodes",
    "collectors": "Collectors that are connected",
    "restarts": "Restarts of the coordinator and of tasks",
}
"""Counters of a run in Ray's dashboard and for Prometheus, there as ``ray_lightning_ding_<name>``."""
PATIENCE = 20.0  # seconds until an earlier coordinator of the same run, whose node is leaving, must have ended


def answer(handler: Handler, store: RayStore, name: str, message: Message, deleted: Sequence[str]) -> dict[str, Any]:
    """Return ``{"reply"}``, ``{"refused": [status, reason]}``, or ``{"failed": reason}`` to be sent again.

    A full disk or another ``OSError`` may be over a little later, so the sender sends the same message again.

    Args:
        handler: Answers the messages, ``Coordinator.handle``.
        store: Store of the coordinator.
        name: Name of the message.
        message: Content of the message.
        deleted: Names of rounds that the sender has deleted.
    """
    store.release(deleted)
    try:
        return {"reply": store.with_weights(handler(name, message))}
    except Refusal as refusal:
        return {"refused": [refusal.status, refusal.reason]}
    except OSError as error:
        logger.exception("the message %r could not be answered", name)
        return {"failed": f"{type(error).__name__}: {error}"}


class CoordinatorActor:
    """The coordinator; after Ray has restarted it, it resumes the run in its folder.

    Ray passes on only the text of an error in ``__init__``. Therefore an error in the config or the folder is kept, and
    :meth:`mistake` returns it.

    Args:
        cfg: Config of the run, with an absolute ``exp_name``.
        resume: Whether to resume the run in the folder at the first start, too.
    """

    def __init__(self, cfg: ParallelConfig, resume: bool = False) -> None:
        torch.set_num_threads(1)  # each thread of the actor would start others for its operations on small tensors
        self._folder = Path(cfg.main.exp_name)
        self._mistake: Exception | None = None
        self._line, self._report_at = ProgressLine(), time.monotonic() + REPORT
        self._gauges: dict[str, Any] = {}
        self._collectors: int | None = None
        try:
            self._start(cfg, resume)
        except (ImportError, ValueError) as error:
            self._mistake = error

    def mistake(self) -> Exception | None:
        """Return why the coordinator could not start; None if it could."""
        return self._mistake

    def handle(self, name: str, message: Message, deleted: Sequence[str]) -> dict[str, Any]:
        """Answer a call of ``RayChannel``, see :func:`answer`."""
        if self._mistake is not None:
            return {"refused": [503, f"the coordinator cannot start: {self._mistake}"]}
        return answer(self._coordinator.handle, self._store, name, message, deleted)

    def look(self, timeout: float, collectors: int | None) -> dict[str, Any]:
        """Wait until the run is over and all workers have been notified, but not longer than ``timeout`` seconds.

        Args:
            timeout: Longest time to wait, in seconds.
            collectors: Number of collecting tasks, if it follows the cluster; otherwise None.

        Returns:
            ``is_over``, and ``line`` about the progress of the run if it is time for one, otherwise None.
        """
        if self._mistake is not None:
            return {"is_over": True, "line": None}
        if collectors != self._collectors and "reply" in self.handle("set_collectors", {"n": collectors}, []):
            self._collectors = collectors  # otherwise the next call tries again
        is_over, now = bool(self._coordinator.wait(timeout)), time.monotonic()
        if is_over or now < self._report_at:
            return {"is_over": is_over, "line": None}
        self._report_at = now + REPORT
        status = self._coordinator.status()
        for name, gauge in self._gauges.items():
            gauge.set(math.nan if status[name] is None else status[name])
        return {"is_over": False, "line": self._line.of(status)}

    def close(self) -> dict[str, Any]:
        """Close the coordinator, which writes its state, and return the content of ``result.json``."""
        if self._mistake is not None:
            return {"error": f"the coordinator could not start again: {self._mistake}"}
        self._coordinator.close()
        self._held.close()
        written = self._folder / "result.json"
        result: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
        return {**result, "error": self._coordinator.failure}

    def _start(self, cfg: ParallelConfig, resume: bool) -> None:
        from ray.util.metrics import Gauge

        from lightning_ding.distributed.coordinator.coordinator import Coordinator

        self._held = ExitStack()
        self._held.enter_context(locked(self._folder, PATIENCE))
        restarted = import_ray().get_runtime_context().was_current_actor_reconstructed
        store = self._store = RayStore(self._folder / "data", cfg.system.coordinator.max_block)
        resumes = resume or (restarted and holds_run(self._folder))  # it may have died before it wrote its state
        self._coordinator = Coordinator(cfg, store, resume=bool(resumes))
        store.delete_other_weights(self._coordinator.run.weights.handles())
        self._coordinator.start()
        for name, about in METRICS.items():
            self._gauges[name] = gauge = Gauge(f"lightning_ding_{name}", about, ("run",))
            gauge.set_default_tags({"run": str(self._folder)})


class WorkerActor:
    """A learner, a rank of a learner, or a collector.

    Args:
        cfg: Config of the run, with an absolute ``exp_name`` and ``system.transport`` ``"ray"``.
        role: ``"learner"`` or ``"collector"``.
    """

    def __init__(self, cfg: ParallelConfig, role: str) -> None:
        self._cfg = cfg
        self._role = role
        self._ranks_store: Any = None

    def node(self) -> str:
        """Return the id of the node on which this actor runs."""
        return str(import_ray().get_runtime_context().get_node_id())

    def open_store(self) -> tuple[str, int]:
        """Open the store through which the ranks of a learner meet, in rank zero, and return its host and port."""
        host = str(import_ray().util.get_node_ip_address())
        self._ranks_store = open_store(host)  # lives as long as this process
        return host, int(self._ranks_store.port)

    def run(self, rank: int = 0, ranks: int = 1, address: tuple[str, int] | None = None) -> int | Exception:
        """Do tasks until the run is over; called again after Ray has restarted this actor.

        Args:
            rank: Index of the rank.
            ranks: Number of ranks of the learner.
            address: Host and port of the store of rank zero, if there are several ranks.

        Returns:
            The exit code, or the error in the config that makes a worker impossible.
        """
        from lightning_ding.distributed.comm_worker.collector import CommCollector
        from lightning_ding.distributed.comm_worker.learner import CommLearner

        if address is not None:
            os.environ.update(environment_of_rank(rank, ranks, *address))
        try:
            worker = CommLearner(self._cfg) if self._role == "learner" else CommCollector(self._cfg)
        except (ImportError, ValueError) as error:
            return error
        return worker.start()
