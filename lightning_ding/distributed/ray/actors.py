"""What runs in Ray's processes: the coordinator, which answers calls, and workers, which make them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_ding.distributed.channel import Handler, Message
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.ray import import_ray
from lightning_ding.distributed.ray.store import RayStore


class Door:
    """Answers calls of ``RayChannel`` with what a handler says, and sees to the blocks that come and go with them.

    Args:
        handler: ``Coordinator.handle``.
        store: The coordinator's.
    """

    def __init__(self, handler: Handler, store: RayStore) -> None:
        self._handler = handler
        self._store = store

    def answer(self, name: str, message: Message, parcel: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"reply", "refs"}``, or ``{"refused": [status, reason]}`` for what is not taken.

        Args:
            name: Of the message.
            message: What it says.
            parcel: ``refs``: what is behind the handles in it; ``deleted``: names of blocks that the sender deleted.
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
        self._store.release(handle["name"] for handle in new if handle["kind"] == "data")  # it comes again, or is moved
        return {"reply": reply, "refs": refs}


class CoordinatorActor:
    """The coordinator; started anew by Ray, it takes up the run that its folder holds.

    A mistake in the config or the folder is kept for ``mistake``: of what ``__init__`` raises Ray tells the text alone.

    Args:
        cfg: Of the run, with an absolute ``exp_name``.
        resume: Take up the run that the folder holds at the first start, too.
    """

    def __init__(self, cfg: ParallelConfig, resume: bool = False) -> None:
        self._folder = Path(cfg.main.exp_name)
        self._mistake: Exception | None = None
        try:
            self._start(cfg, resume)
        except (ImportError, ValueError) as error:
            self._mistake = error

    def mistake(self) -> Exception | None:
        """Return why the coordinator could not start; None if it could."""
        return self._mistake

    def handle(self, name: str, message: Message, parcel: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of ``RayChannel``; see ``Door``."""
        if self._mistake is not None:
            return {"refused": [503, f"the coordinator cannot start: {self._mistake}"]}
        return self._door.answer(name, message, parcel)

    def is_over(self, timeout: float) -> bool:
        """Wait until the run is over and all workers know; return whether it is so.

        Args:
            timeout: Seconds to wait at most.
        """
        return self._mistake is not None or bool(self._coordinator.wait(timeout))

    def close(self) -> dict[str, Any]:
        """End, write down what there is to write, and return what stands in ``result.json``."""
        if self._mistake is not None:
            return {"error": f"the coordinator could not start again: {self._mistake}"}
        self._coordinator.close()
        written = self._folder / "result.json"
        result: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
        return {**result, "error": self._coordinator.error}

    def _start(self, cfg: ParallelConfig, resume: bool) -> None:
        from lightning_ding.distributed.coordinator import Coordinator

        again = import_ray().get_runtime_context().was_current_actor_reconstructed
        store = RayStore(self._folder / "data", cfg.system.coordinator.max_block)
        self._coordinator = Coordinator(cfg, store, resume=bool(resume or again))
        self._coordinator.start()
        self._door = Door(self._coordinator.handle, store)


class WorkerActor:
    """A learner or a collector.

    Args:
        cfg: Of the run, with an absolute ``exp_name``.
        role: ``"learner"`` or ``"collector"``.
    """

    def __init__(self, cfg: ParallelConfig, role: str) -> None:
        self._cfg = cfg
        self._role = role

    def run(self) -> int | Exception:
        """Do tasks until the run is over; called again when Ray started this actor anew.

        Returns:
            The exit code, or the mistake in the config for which there can be no worker.
        """
        from lightning_ding.distributed.ray.workers import RayCollector, RayLearner

        try:
            worker = RayLearner(self._cfg) if self._role == "learner" else RayCollector(self._cfg)
        except (ImportError, ValueError) as error:
            return error
        return int(worker.start())
