"""The coordinator's answers to collectors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import messages
from lightning_ding.distributed.coordinator.intake import Sender
from lightning_ding.distributed.coordinator.replay import Replay
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.distributed.coordinator.worker_endpoint import Endpoint
from lightning_ding.distributed.messages import read_metadata
from lightning_ding.distributed.transport import DISK_WAIT, Message, Refusal

logger = logging.getLogger(__name__)


class CollectorEndpoint(Endpoint):
    """Answers the messages of collectors."""

    def deal_with_collector_send_data(self, message: Message) -> Message:
        """Accept transitions and their metadata, which are on the disk when this returns."""
        seq, metadata = messages.whole(message, "seq"), read_metadata(message)
        with self.run.lock:
            task = self._owned(message, "collector")
            if task.is_evaluation:
                raise Refusal(400, f"the task {task.task_id} is an evaluation, which sends no data")
            replay = self.run.replay(task.buffer_id)
            policy_version, forced = self.run.policy_version(task.buffer_id), self.scheduler.is_over
            sender = Sender(str(task.run_id), task.slot, task.run_number)
        wait = replay.collector_wait()
        try:
            verdict = replay.accept(
                sender, seq, messages.handle(message, "data_id", "data"), metadata, policy_version, forced
            )
        except OSError as error:
            logger.error("data of %s cannot be written: %s", sender.run_id, error)
            verdict, wait = "wait", DISK_WAIT
        with self.run.lock:
            if verdict == "accepted":
                self._note_data(task, is_progress=message.get("data_id") is not None)
            taken = {"accepted": verdict != "wait", "duplicate": verdict == "duplicate"}
            return {**taken, "wait": wait if verdict == "wait" else 0.0, **self._settings(task, replay)}

    def deal_with_collector_finish_task(self, message: Message) -> Message:
        """Record the end of a collecting or evaluating task."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "collector"), messages.mapping(message, "info")
                is_done = self.deal_with_collector_judge_finish(task.task_id, info)
                self._finish(task, info, is_done)
                if is_done and task.is_evaluation:
                    self.run.results.note_evaluation(info, self.run.env_step())
                self.run.changed()
        return {}

    def deal_with_collector_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the finish info of a collector marks its task as done."""
        return self.scheduler.commander.judge_collector_finish(task_id, info)

    def _settings(self, task: Task, replay: Replay) -> Message:
        """Return the settings with which a collector continues."""
        serials, paths = self.run.weights.serials(), task.info["collector_cfg"]["policy_update_path"]
        return {
            "close": task.is_closing,
            "policy": {path: serials[path] for path in paths if path in serials},
            "collect_setting": self.scheduler.commander.collect_setting(replay.counts.env_step),
            "random": replay.wants_random(),
        }

    def _note_data(self, task: Task, is_progress: bool) -> None:
        if is_progress:  # the first message of a task has no data
            self.scheduler.note_progress(task)
        limit = self.run.config.main.max_env_step
        if limit is not None and not self.scheduler.is_over and self.run.env_step() >= limit:
            self.scheduler.end()
            self.run.changed()
