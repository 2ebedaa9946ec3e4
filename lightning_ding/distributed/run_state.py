"""All that a coordinator knows of a run, and its files.

Data are in journals and snapshots, see :mod:`lightning_ding.distributed.journal`; tasks and their owners in
``state.json``, which is written before anybody is told of a change; weights in ``policies.json``.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.distributed.channel import KINDS, Store
from lightning_ding.distributed.commander import BaseParallelCommander
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.going_on import check_fixed_part, fixed_part
from lightning_ding.distributed.journal import STATE_FILE
from lightning_ding.distributed.replay import Replay
from lightning_ding.distributed.replay_settings import ReplaySettings
from lightning_ding.distributed.results import Results
from lightning_ding.distributed.scheduler import Scheduler
from lightning_ding.distributed.tasks import ROLES
from lightning_ding.distributed.weights import Weights

logger = logging.getLogger(__name__)


class RunState:
    """Tasks, buffers, weights and results of a run.

    Args:
        config: Of the run.
        settings: How its buffers are filled and read.
        commander: Says what is to be done.
        store: Where blocks lie.
        resume: Go on with what the folder holds.
        clock: Returns seconds, for leases.

    Raises:
        ValueError: If the folder holds a run that is not over and ``resume`` is false, one that cannot go on with this
            config, or one that is over and ``resume`` is true.
    """

    def __init__(
        self,
        config: ParallelConfig,
        settings: ReplaySettings,
        commander: BaseParallelCommander,
        store: Store,
        resume: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(config.main.exp_name)
        self.files = self.folder / "coordinator"
        state_file = self.files / STATE_FILE
        if state_file.exists() and not resume:
            raise ValueError(
                f"{str(self.folder)!r} holds a run that is not over: go on with it by --resume (resume=True), "
                "or choose another main.exp_name"
            )
        if resume and not state_file.exists() and (self.folder / "result.json").exists():
            raise ValueError(f"the run in {str(self.folder)!r} is over: choose another main.exp_name")
        self.settings = settings
        self.config = config
        self.store = store
        self.scheduler = Scheduler(commander, config.system.coordinator, clock)
        self.weights = Weights(self.files / "policies.json", store)
        self.results = Results()
        self.replays: dict[str, Replay] = {}
        self.lock = threading.Condition(threading.RLock())
        """Of everything but the buffers, which have locks of their own; never waited for with one of these in hand."""
        self._buffers: dict[str, dict[str, Any]] = {}
        self._fixed = fixed_part(config)
        self._is_removed = False
        if not state_file.exists():
            shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir(parents=True, exist_ok=True)
        if state_file.exists():
            self.load_state_dict(json.loads(state_file.read_text()))
            self.weights.load()

    # ------------------------------------------------------------------ buffers

    def replay(self, buffer_id: str) -> Replay:
        """Return a buffer.

        Raises:
            Refusal: 404, if there is none.
        """
        found = self.replays.get(buffer_id)
        if found is None:
            raise Refusal(404, f"there is no buffer {buffer_id[:100]!r}")
        return found

    def policy_version(self, buffer_id: str) -> int:
        """Return the updates behind the newest weights of who learns from a buffer."""
        return self.weights.version(self._buffers[buffer_id]["policy_id"])

    def env_step(self) -> int:
        """Return the env steps of all collectors."""
        return sum(replay.counts.env_step for replay in self.replays.values())

    # ------------------------------------------------------------------ state

    def changed(self) -> None:
        """Note that a task or a policy changed hands: write it down, make new buffers, wake who waits for a task."""
        with self.lock:
            for task in self.scheduler.book.tasks.values():
                if task.role == "learner":
                    cfg = task.info.get("replay_buffer_cfg") or {}
                    self._buffers.setdefault(task.buffer_id, {"policy_id": task.info["policy_id"], "cfg": cfg})
            self._make_buffers()
            if not self._is_removed:
                replace_text(self.files / STATE_FILE, json.dumps(self.state_dict()))
            self.lock.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """Return everything but data and weights, as builtins."""
        with self.lock:
            parts = {"scheduler": self.scheduler.state_dict(), "results": self.results.state_dict()}
            return {**parts, "buffers": self._buffers, "fixed": self._fixed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned; data are read from the folder.

        Raises:
            ValueError: If it is the state of a run that cannot go on with this config.
        """
        with self.lock:
            check_fixed_part(state["fixed"], self.config)
            self.scheduler.load_state_dict(state["scheduler"])
            self.results.load_state_dict(state["results"])
            self._buffers = dict(state["buffers"])
            self._make_buffers()

    def save(self) -> None:
        """Write down everything: buffers as snapshots, so that a later start has less to read.

        Raises:
            OSError: If the disk does not take it.
        """
        with self.lock:
            over = self.scheduler.book.runs_over()
            replays = list(self.replays.values())
        for replay in replays:
            replay.snapshot(over)
        self.changed()

    def status(self) -> dict[str, Any]:
        """Return how far the run is, as builtins."""
        with self.lock:
            book, counts = self.scheduler.book, [replay.counts for replay in self.replays.values()]
            names = ("env_step", "episode", "sample", "too_old", "dropped_episodes", "refused")
            status: dict[str, Any] = {name: sum(getattr(one, name) for one in counts) for name in names}
            for role in ROLES:
                workers = sum(worker.role == role for worker in book.workers.values())
                status[f"{role}s"] = workers
                status[f"{role}_tasks"] = {"running": len(book.running(role)), "waiting": len(book.waiting(role))}
            for replay in self.replays.values():
                status |= replay.stats()
            run = {"train_iter": self.results.train_iter, "seconds": round(self.results.seconds, 3)}
            return {**status, **run, "is_over": self.scheduler.is_over, "error": self.scheduler.error}

    # ------------------------------------------------------------------ the end

    def write_result(self) -> None:
        """Write ``result.json``."""
        with self.lock:
            counters = self.status()
            told = {"env_step": counters["env_step"], "episodes": counters["episode"]}
            found = self.results.state_dict()
            named = {"results": found.pop("learner"), "error": self.scheduler.error, "counters": counters}
            replace_text(self.folder / "result.json", json.dumps({**told, **found, **named}))

    def remove(self) -> None:
        """Delete what nobody needs when the run is over."""
        with self.lock:
            self._is_removed = True
            shutil.rmtree(self.files, ignore_errors=True)
            for kind in KINDS:
                shutil.rmtree(self.folder / "data" / kind, ignore_errors=True)

    def _make_buffers(self) -> None:
        for buffer_id, known in self._buffers.items():
            if buffer_id not in self.replays:
                made = (known["cfg"], self.settings, self.files, self.store)
                self.replays[buffer_id] = Replay(buffer_id, *made)
