"""What collectors tell the coordinator, and what they are told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import fields
from lightning_ding.distributed.channel import DISK_WAIT, Message
from lightning_ding.distributed.counts import Sender
from lightning_ding.distributed.data_message import read_metadata
from lightning_ding.distributed.desk import Desk
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.replay import Replay
from lightning_ding.distributed.tasks import Task

logger = logging.getLogger(__name__)


class CollectorDesk(Desk):
    """The coordinator's answers to collectors."""

    def deal_with_collector_send_data(self, message: Message) -> Message:
        """Take transitions and what happened meanwhile; it is on the disk when this returns."""
        seq, metadata = fields.whole(message, "seq"), read_metadata(message)
        with self.run.lock:
            task = self._owned(message, "collector")
            if task.is_evaluation:
                raise Refusal(400, f"the evaluation {task.task_id} gives no data to learn from")
            replay = self.run.replay(task.buffer_id)
            version, forced = self.run.policy_version(task.buffer_id), self.scheduler.is_over
            sender = Sender(str(task.run_id), task.slot, task.run_number)
        wait = replay.collector_wait()
        try:
            verdict = replay.accept(sender, seq, fields.handle(message, "data_id", "data"), metadata, version, forced)
        except OSError as error:
            logger.error("the disk did not take data of %s: %s", sender.run_id, error)
            verdict, wait = "wait", DISK_WAIT
        with self.run.lock:
            if verdict == "accepted":
                self._note_data(task, is_progress=message.get("data_id") is not None)
            taken = {"accepted": verdict != "wait", "duplicate": verdict == "duplicate"}
            return {**taken, "wait": wait if verdict == "wait" else 0.0, **self._told(task, replay)}

    def deal_with_collector_finish_task(self, message: Message) -> Message:
        """Note that a collecting or evaluating task is over."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "collector"), fields.mapping(message, "info")
                is_done = self.deal_with_collector_judge_finish(task.task_id, info)
                self._finish(task, info, is_done)
                if is_done and task.is_evaluation:
                    self.run.results.note_evaluation(info, self.run.env_step())
                self.run.changed()
        return {}

    def deal_with_collector_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a collector's info says that its task is over."""
        return self.scheduler.commander.judge_collector_finish(task_id, info)

    def _told(self, task: Task, replay: Replay) -> Message:
        """Return what a collector needs to know to go on."""
        serials, paths = self.run.weights.serials(), task.info["collector_cfg"]["policy_update_path"]
        return {
            "close": task.is_closing,
            "policy": {path: serials[path] for path in paths if path in serials},
            "collect_setting": self.scheduler.commander.collect_setting(replay.counts.env_step),
            "random": replay.wants_random(),
        }

    def _note_data(self, task: Task, is_progress: bool) -> None:
        if is_progress:  # an empty message is only the first question
            self.scheduler.note_progress(task)
        limit = self.run.config.main.max_env_step
        if limit is not None and not self.scheduler.is_over and self.run.env_step() >= limit:
            self.scheduler.end()
            self.run.changed()
