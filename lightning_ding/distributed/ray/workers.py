"""The actors of a run over Ray: the coordinator, which answers calls, and its workers, which make them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lightning_ding.distributed.comm_worker.ranks import environment_of_rank, open_store
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.folder import holds_run, locked
from lightning_ding.distributed.progress import ProgressLine
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.transport import Handler, Message, Refusal, Server

logger = logging.getLogger(__name__)

PATIENCE = 20.0  # seconds until an earlier coordinator of the same run, whose node is leaving, must have ended


class RayServer(Server):
    """Answers calls of ``RayChannel`` through a handler, and keeps or releases the blocks that travel with them.

    Ray finds the actor by its name and calls it in several threads, so there is no address and nothing to start.

    Args:
        handler: Answers the messages, ``Coordinator.handle``.
        store: Store of the coordinator.
    """

    address: Mapping[str, Any] = {}

    def __init__(self, handler: Handler, store: RayStore) -> None:
        self._handler = handler
        self._store = store

    @override
    def start(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    def answer(self, name: str, message: Message, parcel: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"reply", "refs"}``, ``{"refused": [status, reason]}``, or ``{"failed": reason}`` to be sent again.

        A full disk or another ``OSError`` may be over a little later, so the sender sends the same message again.

        Args:
            name: Name of the message.
            message: Content of the message.
            parcel: ``refs``, references to the blocks whose handles are in the message; ``deleted``, names of blocks
                that the sender has deleted.
        """
        self._store.release(parcel["deleted"])
        new: list[dict[str, Any]] = []
        try:
            new = self._store.adopt(message, parcel["refs"])
            reply = self._handler(name, message)
            refs = self._store.refs_of(reply)
        except Refusal as refusal:
            for handle in new:
                self._store.delete(handle)
            return {"refused": [refusal.status, refusal.reason]}
        except OSError as error:
            logger.exception("the message %r could not be answered", name)
            return {"failed": f"{type(error).__name__}: {error}"}
        finally:
            self._store.release(handle["name"] for handle in new if handle["kind"] == "data")  # moved, or sent again
        return {"reply": reply, "refs": refs}


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
        self._line = ProgressLine()
        try:
            self._start(cfg, resume)
        except (ImportError, ValueError) as error:
            self._mistake = error

    def mistake(self) -> Exception | None:
        """Return why the coordinator could not start; None if it could."""
        return self._mistake

    def handle(self, name: str, message: Message, parcel: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of ``RayChannel``; see :meth:`RayServer.answer`."""
        if self._mistake is not None:
            return {"refused": [503, f"the coordinator cannot start: {self._mistake}"]}
        return self._server.answer(name, message, parcel)

    def is_over(self, timeout: float) -> bool:
        """Wait until the run is over and all workers have been notified; return False on timeout.

        Args:
            timeout: Longest time to wait, in seconds.
        """
        return self._mistake is not None or bool(self._coordinator.wait(timeout))

    def progress(self) -> str:
        """Return a line about the progress of the run; an empty one if it could not start."""
        return "" if self._mistake is not None else self._line.of(self._coordinator.status())

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
        from lightning_ding.distributed.coordinator.coordinator import Coordinator

        self._held = ExitStack()
        self._held.enter_context(locked(self._folder, PATIENCE))
        restarted = import_ray().get_runtime_context().was_current_actor_reconstructed
        store = RayStore(self._folder / "data", cfg.system.coordinator.max_block)
        resumes = resume or (restarted and holds_run(self._folder))  # it may have died before it wrote its state
        self._coordinator = Coordinator(cfg, store, resume=bool(resumes))
        store.delete_other_weights(self._coordinator.run.weights.handles())
        self._coordinator.start()
        self._server = RayServer(self._coordinator.handle, store)


class WorkerActor:
    """A learner, a rank of a learner, or a collector.

    Args:
        cfg: Config of the run, with an absolute ``exp_name`` and ``system.transport`` ``"ray"``.
        role: ``"learner"`` or ``"collector"``.
    """

    def __init__(self, cfg: ParallelConfig, role: str) -> None:
        self._cfg = cfg
        self._role = role
        self._store: Any = None

    def node(self) -> str:
        """Return the id of the node on which this actor runs."""
        return str(import_ray().get_runtime_context().get_node_id())

    def open_store(self) -> tuple[str, int]:
        """Open the store through which the ranks of a learner meet, in rank zero, and return its host and port."""
        host = str(import_ray().util.get_node_ip_address())
        self._store = open_store(host)  # lives as long as this process
        return host, int(self._store.port)

    def run_rank(self, rank: int, ranks: int, address: tuple[str, int]) -> int | Exception:
        """Do tasks as one of several ranks.

        Args:
            rank: Index of the rank.
            ranks: Number of ranks.
            address: Host and port of the store of rank zero.

        Returns:
            As :meth:`run`.
        """
        os.environ.update(environment_of_rank(rank, ranks, *address))
        return self.run()

    def run(self) -> int | Exception:
        """Do tasks until the run is over; called again after Ray has restarted this actor.

        Returns:
            The exit code, or the error in the config that makes a worker impossible.
        """
        from lightning_ding.distributed.comm_worker.collector import BaseCommCollector
        from lightning_ding.distributed.comm_worker.learner import BaseCommLearner

        try:
            worker = BaseCommLearner(self._cfg) if self._role == "learner" else BaseCommCollector(self._cfg)
        except (ImportError, ValueError) as error:
            return error
        return int(worker.start())
