"""The state of a run in the coordinator, and its files.

Data are in journals and snapshots, see :mod:`lightning_ding.distributed.coordinator.journal`. Tasks and owners are in
the database, into which changes are written before a worker is informed of them. Changes that are made while others are
being written share the next write.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.distributed.commander.base import BaseParallelCommander
from lightning_ding.distributed.coordinator.database import Key
from lightning_ding.distributed.coordinator.folder import COORDINATOR, check_folder, database_of, read_state, records_of
from lightning_ding.distributed.coordinator.publications import Publication, PublishedWeights
from lightning_ding.distributed.coordinator.replay import Replay
from lightning_ding.distributed.coordinator.resume import check_end, check_fixed_part, fixed_part, record_of_end
from lightning_ding.distributed.coordinator.scheduler import Scheduler
from lightning_ding.distributed.coordinator.schema import Announced
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from lightning_ding.distributed.file_store import FileStore, UnannouncedData
from lightning_ding.distributed.messages import read_columns
from lightning_ding.distributed.transport import KINDS, ROLES, Refusal, Store
from lightning_ding.policy.base.saved_state import check_imported, not_imported

logger = logging.getLogger(__name__)

KEPT_LEASES = 8  # leases after which data that no message names are deleted
KEPT_SECONDS = 60.0  # the same in seconds, if that is longer; a collector sends a message again after 10 s at most


class RunState:
    """Tasks, buffers, weights and results of a run.

    Args:
        settings: Settings of the buffers, with the config of the run.
        commander: Commander that decides on tasks.
        store: Store for blocks of tensors.
        resume: Whether to resume the run in the folder.
        clock: Function that returns the time in seconds, for leases.

    Raises:
        ValueError: If the folder holds files of another run and ``resume`` is false, or ``resume`` is true and it
            holds no run, or one that is damaged or cannot be continued with this config.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        commander: BaseParallelCommander,
        store: Store,
        resume: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config = settings.config
        self.folder = Path(config.main.exp_name)
        self.files = self.folder / COORDINATOR
        check_folder(self.folder, resume, may_have_learner=True)
        self.settings = settings
        self.store = store
        self.scheduler = Scheduler(commander, config.system.coordinator, clock)
        self.database = database_of(self.folder)
        self.weights = PublishedWeights(self.database, self.files / "policies", store)
        age = max(KEPT_SECONDS, KEPT_LEASES * config.system.coordinator.lease)
        self._unannounced = (
            UnannouncedData(store, age, clock, self._published_names) if isinstance(store, FileStore) else None
        )
        self.results = Results()
        self.replays: dict[str, Replay] = {}
        self.lock = threading.Condition(threading.RLock())
        """Lock of everything except the buffers, whose separate locks must not be held while acquiring this one."""
        self._buffers: dict[str, dict[str, Any]] = {}
        self._fixed = fixed_part(config)
        self._end: dict[str, Any] | None = None  # record of the finished run
        self._is_removed = False
        self._writing = threading.Lock()  # must not be acquired while holding ``lock``
        self._noted = self._written = self._owed = 0
        self._saved: dict[Key, Any] = {}  # the records of the state that the database has
        self._of_thread = threading.local()  # its ``noted`` is the newest change that this thread has noted
        self.files.mkdir(parents=True, exist_ok=True)
        if resume:
            try:
                self._resume()
            except BaseException:
                self.database.close()
                raise

    # ------------------------------------------------------------------ buffers

    def replay(self, buffer_id: str) -> Replay:
        """Return the replay of a buffer.

        Raises:
            Refusal: 404, if there is no such buffer.
        """
        found = self.replays.get(buffer_id)
        if found is None:
            raise Refusal(404, f"there is no buffer {buffer_id[:100]!r}")
        return found

    def announce(self, buffer_id: str, columns: Announced) -> None:
        """Hold the blocks for a buffer against the columns that its learner has announced, also after a restart."""
        known = columns.state_dict()
        with self.lock:
            replay, is_new = self.replay(buffer_id), self._buffers[buffer_id].get("columns") != known
            if is_new:
                self._buffers[buffer_id] = {**self._buffers[buffer_id], "columns": known}
                self.changed()
        if is_new:
            replay.announce(columns)

    def newest(self, buffer_id: str) -> Publication:
        """Return the newest weights of the policy that learns from a buffer."""
        return self.weights.newest(self._buffers[buffer_id]["policy_id"])

    def env_step(self) -> int:
        """Return the env steps of all collectors together."""
        return sum(replay.counts.env_step for replay in self.replays.values())

    # ------------------------------------------------------------------ state

    def changed(self) -> None:
        """Note a change of tasks or policies, make new buffers, and wake requests for a task.

        :meth:`commit` writes the change; it must be called without the lock, before a worker is informed of the change.
        """
        with self.lock:
            for task in self.scheduler.book.tasks.values():
                if task.role == "learner":
                    cfg = task.info.get("replay_buffer_cfg") or {}
                    self._buffers.setdefault(task.buffer_id, {"policy_id": task.info["policy_id"], "cfg": cfg})
            self._make_buffers()
            self._noted += 1
            self._of_thread.noted = self._noted
            self.lock.notify_all()

    def commit(self, others: bool = True) -> None:
        """Wait until the changes that this thread has noted are on the disk.

        A write contains all changes up to its beginning, so threads that wait at the same time share the next one.
        After a failed write, every call writes until one succeeds.

        Args:
            others: Whether to wait also for changes of other threads that are being written or could not be written.

        Raises:
            OSError: If the state cannot be written.
        """
        noted = getattr(self._of_thread, "noted", 0)
        if self._written >= max(noted, self._owed * others):
            return
        with self._writing:
            if self._written >= max(noted, self._owed * others):
                return
            with self.lock:
                number, records, is_removed = self._noted, records_of(self.state_dict()), self._is_removed
            self._owed = number
            if not is_removed:
                changes = {key: value for key, value in records.items() if self._saved.get(key) != value}
                self.database.write(changes | dict.fromkeys(self._saved.keys() - records.keys()))
                self._saved = records
            self._written = number

    def state_dict(self) -> dict[str, Any]:
        """Return everything but data and weights as builtins."""
        with self.lock:
            results = self.results.state_dict()
            parts = {"scheduler": self.scheduler.state_dict(), "evaluations": results.pop("evaluations")}
            rest = {**self.scheduler.book.described(), "buffers": dict(self._buffers), "fixed": self._fixed}
            least = dict(self.weights.least)
            return {**parts, "results": results, **rest, "least": least, "finished": self._end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned; data are read from the folder.

        Raises:
            ValueError: If the run cannot be resumed with this config, which has to let a finished run continue.
            NotRegisteredError: If the state names a module of a buffer that the config does not name.
        """
        of_tasks = [info.get("replay_buffer_cfg") for info in state["contents"].values()]
        content = {"fixed": state["fixed"], "buffers": state["buffers"], "tasks": of_tasks}
        check_imported(content, trusted=not_imported(self._fixed).keys())  # which workers import, but not this process
        with self.lock:
            check_fixed_part(state["fixed"], self.config)
            if (end := state["finished"]) is not None:
                check_end(end, self.config)
            self.scheduler.load_state_dict(state["scheduler"], state, continues=end is not None)
            self.results.load_state_dict({"evaluations": state["evaluations"], **state["results"]})
            self._buffers = dict(state["buffers"])
            self._make_buffers()

    def _resume(self) -> None:
        state = read_state(self.database)
        self._saved = records_of(state)
        self.load_state_dict(state)
        self.weights.load(state["least"])
        if state["finished"] is None and self.weights.least == state["least"]:
            return
        self.changed()
        self.commit()
        if state["finished"] is not None:
            counts = (self.env_step(), self.results.train_iter)
            logger.info("the finished run continues after %d env steps and %d updates", *counts)
            (self.folder / "result.json").unlink(missing_ok=True)  # another one will replace it

    def save(self) -> None:
        """Write the state, and snapshots of the buffers, which make the next start faster.

        The state is synced first, so that no power failure leaves snapshots that are newer than the publications.

        Raises:
            OSError: If a file cannot be written.
        """
        with self.lock:
            over = set(self.scheduler.book.over)
            replays = list(self.replays.values())
        self.changed()
        self.commit()
        for replay in replays:
            replay.snapshot(over)

    def delete_saved_entries(self) -> None:
        """Delete the entries of the journals that snapshots contain.

        Raises:
            OSError: If a file cannot be deleted.
        """
        with self.lock:
            replays = list(self.replays.values())
        for replay in replays:
            replay.delete_saved_entries()

    def status(self) -> dict[str, Any]:
        """Return the progress of the run as builtins."""
        with self.lock:
            scheduler, book, replays = self.scheduler, self.scheduler.book, self.replays.values()
            names = ("env_step", "episode", "sample", "too_old", "dropped_episodes", "refused")
            status: dict[str, Any] = {name: sum(getattr(one.counts, name) for one in replays) for name in names}
            for role in ROLES:
                status[f"{role}s"] = sum(worker.role == role for worker in book.workers.values())
                status[f"{role}_tasks"] = {"running": len(book.running(role)), "waiting": len(book.waiting(role))}
            for replay in replays:
                status |= replay.stats()
            returns = [one for replay in replays for one in tuple(replay.intake.returns)]
            status["return_mean"] = sum(returns) / len(returns) if returns else None
            run = {"train_iter": self.results.train_iter, "seconds": round(self.results.seconds, 3)}
            ended = {"is_over": scheduler.is_over, "error": scheduler.error}
            return {**status, "restarts": scheduler.restarts, **run, **ended}

    # ------------------------------------------------------------------ data that collectors have written

    def held(self, handle: Any) -> AbstractContextManager[None]:
        """Return a context in which a block that a message names is not taken for a forgotten one.

        Args:
            handle: Handle of a block of transitions or weights; None for none.
        """
        if self._unannounced is None or handle is None:
            return nullcontext()
        return self._unannounced.held(handle)

    def delete_unannounced(self) -> None:
        """Delete transitions and weights that a worker has written and never announced, because it was killed.

        Raises:
            OSError: If the folder of the data cannot be read, or a file cannot be deleted.
        """
        try:
            deleted = 0 if self._unannounced is None else self._unannounced.sweep()
        except Refusal as refusal:  # the folder was replaced by a link, so that data are refused, too
            raise OSError(refusal.reason) from refusal
        if deleted:
            logger.info("deleted %d files of data or weights that no message has named", deleted)

    def _published_names(self) -> set[str]:
        with self.lock:
            return {handle["name"] for handle in self.weights.handles()}

    # ------------------------------------------------------------------ the end

    def write_result(self) -> None:
        """Write ``result.json``."""
        with self.lock:
            counters = self.status()
            told = {"env_step": counters["env_step"], "episodes": counters["episode"]}
            found = self.results.state_dict()
            named = {"results": found.pop("learner"), "error": self.scheduler.error, "counters": counters}
            replace_text(self.folder / "result.json", json.dumps({**told, **found, **named}))

    def finish(self) -> None:
        """Reduce the files of a finished run to what a start with larger limits needs, or delete all of them.

        If the disk does not accept that, an error is logged, because the result has been written.
        """
        if not self.config.main.keep_data:
            with self._writing, self.lock:
                self._is_removed = True
                self.database.close()
                shutil.rmtree(self.files, ignore_errors=True)
                self._delete_blocks()
            return
        try:
            with self.lock:
                reached = (self.scheduler.ended_by, self.env_step(), self.results.train_iter)
                self._end = record_of_end(self.config, *reached)
            self.save()
            for replay in self.replays.values():
                replay.keep_newest_snapshot()
            with self.lock:
                self.weights.pack()
                self._delete_blocks()
        except OSError as error:
            logger.error("the run is finished, but its files take more space than --resume needs: %s", error)

    def _delete_blocks(self) -> None:
        if isinstance(self.store, FileStore):
            self.store.clear()
        for kind in KINDS:
            shutil.rmtree(self.folder / "data" / kind, ignore_errors=True)

    def _make_buffers(self) -> None:
        for buffer_id, known in self._buffers.items():
            if buffer_id not in self.replays:
                columns = read_columns(known["columns"]) if "columns" in known else None
                made = (known["cfg"], self.settings, self.database, self.store, columns)
                self.replays[buffer_id] = Replay(buffer_id, *made)


EVALUATION_KEYS = ("train_iter", "reward_mean", "reward_std", "reward_raw", "real_episode_count", "opponent", "result")
KEPT_EVALUATIONS = 10_000


class Results:
    """Evaluations, reports of learners, and the duration of a run."""

    def __init__(self) -> None:
        self.train_iter = 0
        self.evaluations: list[dict[str, Any]] = []
        self.learner: dict[str, float] = {}
        """The final results of the learner."""
        self._seconds_before = 0.0
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration of the run in seconds, without the time between a stop and a restart of the coordinator."""
        return self._seconds_before + time.monotonic() - self._since

    def note_learner(self, info: Mapping[str, Any]) -> None:
        """Record a report of a learner."""
        self.train_iter = max(self.train_iter, int(info.get("learner_step", 0)))
        self.learner |= info.get("results", {})

    def note_evaluation(self, info: Mapping[str, Any], env_step: int) -> None:
        """Record the finish info of an evaluation, and the env steps at that time."""
        told = {name: info[name] for name in EVALUATION_KEYS if name in info}
        self.evaluations = [*self.evaluations, {"env_step": env_step, **told}][-KEPT_EVALUATIONS:]

    def state_dict(self) -> dict[str, Any]:
        """Return everything as builtins."""
        return {
            "train_iter": self.train_iter,
            "evaluations": self.evaluations,
            "learner": dict(self.learner),
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.train_iter, self.evaluations = state["train_iter"], list(state["evaluations"])
        self.learner, self._seconds_before = dict(state["learner"]), state["seconds"]
