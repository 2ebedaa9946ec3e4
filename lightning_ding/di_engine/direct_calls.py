"""The coordinator's methods for callers in its own process.

They change the same state as the messages of workers, and may be used in addition to them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lightning_ding import nested
from lightning_ding.di_engine import parallel_forms
from lightning_ding.distributed.coordinator.intake import Sender
from lightning_ding.distributed.coordinator.replay import Replay
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.distributed.transport import Refusal, Role

if TYPE_CHECKING:
    from lightning_ding.distributed.coordinator.coordinator import Coordinator

logger = logging.getLogger(__name__)


class DirectCalls:
    """Takes data, gives batches and ends tasks, for callers in the process of the coordinator.

    Args:
        coordinator: The coordinator, whose methods these become.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.run = coordinator.run
        self.scheduler = coordinator.scheduler
        self._coordinator = coordinator
        self._pushing = threading.Lock()

    def info(self, text: str) -> None:
        """Write a line to Python's logging, at level INFO."""
        logger.info("[Coordinator(%s)]: %s", self.run.config.main.exp_name, text)

    def error(self, text: str) -> None:
        """Write a line to Python's logging, at level ERROR."""
        logger.error("[Coordinator(%s)]: %s", self.run.config.main.exp_name, text)

    # ------------------------------------------------------------------ collectors

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> None:
        """Store transitions; if the task or the buffer is unknown, log an error and drop them.

        Args:
            task_id: Id of a running collecting task.
            buffer_id: Id of the buffer.
            data_id: Name of the data, for the log.
            data: A transition, or a list of transitions that follow each other; ``done`` may replace ``terminated``.

        Raises:
            ValueError: If the data are not transitions, or the buffer does not accept them.
        """
        with self.run.lock:
            task, replay = self._running(task_id, "collector"), self.run.replays.get(buffer_id)
            if task is None or task.is_evaluation or replay is None:
                unknown = f"collecting task {task_id!r}" if replay is not None else f"buffer {buffer_id!r}"
                self.error(f"the data {data_id!r} are dropped, because there is no {unknown}")
                return
            sender = Sender(str(task.run_id), task.slot, task.run_number)
            newest = self.run.newest(buffer_id)
        with self._pushing:
            number = replay.counts.next_seq.get(sender.run_id, 0)
            rows = parallel_forms.rows_for_buffer(data, newest.policy_version, number)
            about = {"env_step": nested.length(rows), "returns": [], "lengths": [], "dropped_episodes": []}
            handle = self.run.store.put("data", rows)
            message = (sender, number, handle, {**about, "wait_time": 0.0})
            try:
                with self.run.held(handle):
                    replay.accept(*message, newest, forced=True)
            except Refusal as refusal:
                raise ValueError(refusal.reason) from refusal
        with self.run.lock:
            self._coordinator._note_data(task, is_progress=True)
        self.run.commit()

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        """Return whether the info of a collector marks its task as done; False for an unknown task."""
        with self.run.lock:
            task = self._running(task_id, "collector")
            if task is None:
                self.error(f"there is no collecting task {task_id!r} that could be done")
                return False
            return bool(data.get("collector_done", False))

    def deal_with_collector_finish_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        """Record the end of a collecting or evaluating task; log an error if it is unknown.

        Args:
            task_id: Id of a running task.
            finished_task: Finish info of the collector, as :meth:`BaseParallelCollector.get_finish_info` returns it.

        Raises:
            KeyError: If an evaluation's info lacks an entry.
        """
        with self.run.lock:
            task = self._running(task_id, "collector")
            if task is None:
                self.error(f"there is no collecting task {task_id!r} that could end")
                return
            info = {"collector_done": True, **finished_task}
            self.scheduler.finish(task, info)
            if task.is_evaluation:
                self.run.results.note_evaluation(info, self.run.env_step())
            self.run.changed()
        self.run.commit()

    # ------------------------------------------------------------------ learners

    def deal_with_learner_get_data(
        self, task_id: str, buffer_id: str, batch_size: int, cur_learner_iter: int
    ) -> list[dict[str, Any]] | None:
        """Return a minibatch as a list of transitions, in the form that the policy learns from.

        Args:
            task_id: Id of a running learning task.
            buffer_id: Id of the buffer.
            batch_size: Number of transitions, >= 1.
            cur_learner_iter: Updates so far.

        Returns:
            ``batch_size`` transitions; None if there is no such buffer, there are too few transitions, or the ratio of
            sampled to collected transitions would become too large.

        Raises:
            RuntimeError: If there is no such task.
            ValueError: If the policy learns from sequences.
        """
        replay = self._replay_of(task_id, buffer_id)
        if replay is None:
            return None
        with self.run.lock:
            newest = self.run.newest(buffer_id)
        options = self.run.settings.sample_options
        batch = replay.draw(batch_size, 1, cur_learner_iter, options, newest)
        if batch is None:
            return None
        rows: list[dict[str, Any]] = parallel_forms.transitions_of(batch)
        return rows

    def deal_with_learner_send_info(self, task_id: str, buffer_id: str, info: Mapping[str, Any]) -> None:
        """Pass priorities to the buffer, and the progress of a learner to the commander.

        Args:
            task_id: Id of a running learning task.
            buffer_id: Id of the buffer.
            info: ``learner_step``, and in ``priority_info`` lists or tensors of ``priority``, ``replay_unique_id`` and
                ``replay_buffer_idx``, or nothing.

        Raises:
            RuntimeError: If there is no such task.
            ValueError: If the buffer does not accept the priorities.
        """
        replay = self._replay_of(task_id, buffer_id)
        if replay is None:
            return
        priorities = info.get("priority_info")
        if priorities:
            try:
                replay.update({name: torch.as_tensor(values) for name, values in priorities.items()})
            except Refusal as refusal:
                raise ValueError(refusal.reason) from refusal
        about = {name: value for name, value in info.items() if name != "priority_info"}
        with self.run.lock:
            self.run.results.note_learner(about)
            self.scheduler.commander.note_learner(about)

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the info of a learner marks its task as done.

        Raises:
            RuntimeError: If there is no such task.
        """
        with self.run.lock:
            self._learning(task_id)
            return bool(info.get("learner_done", False))

    def deal_with_learner_finish_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        """Record the end of a learning task.

        Raises:
            RuntimeError: If there is no such task.
        """
        with self.run.lock:
            task, info = self._learning(task_id), {"learner_done": True, **finished_task}
            self.run.results.note_learner(info)
            self.scheduler.commander.note_learner(info)
            self.scheduler.finish(task, info)
            self.run.changed()
        self.run.commit()

    # ------------------------------------------------------------------ the number of collectors

    def deal_with_increase_collector(self) -> None:
        """Allow one more concurrent collecting task."""
        self._coordinator.handle("increase_collector", {})

    def deal_with_decrease_collector(self) -> None:
        """Allow one fewer concurrent collecting task, and close the surplus."""
        self._coordinator.handle("decrease_collector", {})

    # ------------------------------------------------------------------ helpers

    def _running(self, task_id: str, role: Role) -> Task | None:
        """Return a task of a role that has an owner; None if there is no such task."""
        task = self.scheduler.book.tasks.get(task_id)
        return task if task is not None and task.role == role and task.run_id is not None else None

    def _learning(self, task_id: str) -> Task:
        task = self._running(task_id, "learner")
        if task is None:
            known = [one.task_id for one in self.scheduler.book.running("learner")]
            raise RuntimeError(f"there is no learning task {task_id!r}; running: {known}")
        return task

    def _replay_of(self, task_id: str, buffer_id: str) -> Replay | None:
        """Return the buffer of a running learning task; log an error if there is no such buffer."""
        with self.run.lock:
            self._learning(task_id)
            replay = self.run.replays.get(buffer_id)
        if replay is None:
            self.error(f"the learning task {task_id!r} asks for the buffer {buffer_id!r}, which does not exist")
        return replay
