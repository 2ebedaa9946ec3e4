"""What learners tell the coordinator, and what they are told."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import fields
from lightning_ding.distributed.channel import Message
from lightning_ding.distributed.data_message import read_info, read_sample_options
from lightning_ding.distributed.desk import Desk
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.replay import Replay
from lightning_ding.distributed.run_state import RunState
from lightning_ding.distributed.tasks import Task

logger = logging.getLogger(__name__)

KEPT_ROUNDS = 64  # that learners may have asked for and not read yet
LARGEST_ROUND = 64  # rounds of the policy's own that one may be as large as
GONE = 404  # of a block that was taken before


class LearnerDesk(Desk):
    """The coordinator's answers to learners.

    Args:
        run: All that is known of the run.
    """

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._rounds: deque[Any] = deque()  # the newest ones, which are perhaps not read yet
        self._answers: dict[tuple[str, int, int], Message] = {}  # the newest ones, which perhaps did not arrive

    def deal_with_learner_get_data(self, message: Message) -> Message:
        """Draw a round and put it into the store, or say how long to wait.

        With a ``number``, the same question again gets the same answer: no episode is lost with an answer.
        """
        if message.get("number") is None:
            return self._answer_get_data(message)
        rank, number = fields.whole(message, "rank"), fields.whole(message, "number")
        key = (fields.text(message, "run_id"), rank, number)
        with self.run.lock:
            self._owned(message, "learner")
            known = self._answers.get(key)
        answer = known if known is not None else self._answer_get_data(message)
        with self.run.lock:
            self._answers[key] = answer
            if len(self._answers) > KEPT_ROUNDS:
                del self._answers[next(iter(self._answers))]
        return answer

    def _answer_get_data(self, message: Message) -> Message:
        amount = self._amount(message)
        train_iter, rank = fields.whole(message, "cur_learner_iter"), fields.whole(message, "rank")
        options = read_sample_options(message)
        with self.run.lock:
            task = self._owned(message, "learner")
            replay, version = self.run.replay(task.buffer_id), self.run.policy_version(task.buffer_id)
            stops = task.is_closing
        batch = None if stops else replay.draw(*amount, train_iter, options, version)
        handle = None if batch is None else self._put(batch)
        counts = replay.counts
        return {
            "data": handle,
            "wait": 0.0 if stops or batch is not None else replay.learner_wait(),
            "stop": stops,
            "progress": {"env_step": counts.env_step, "episode": counts.episode, "sample": counts.sample},
            "episodes": replay.pop_episodes() if rank == 0 else {"returns": [], "lengths": [], "dropped": 0},
            "stats": replay.stats(),
        }

    def deal_with_learner_send_info(self, message: Message) -> Message:
        """Take what a learner did: priorities go to the buffer, numbers to the commander."""
        info = read_info(message)
        step, priorities = info["learner_step"], fields.handle(info, "priority_info", "priority")
        info.pop("priority_info", None)
        with self.run.lock:
            task = self._owned(message, "learner")
            replay = self.run.replay(task.buffer_id)
            if step > self.run.results.train_iter:
                self.scheduler.note_progress(task)
            self._note_info(task, info)
        if priorities is not None:
            self._take_priorities(replay, priorities)
        return {}

    def deal_with_learner_send_policy(self, message: Message) -> Message:
        """Take note of new weights; those that no collector could read are refused."""
        policy_id, version = fields.text(message, "policy_id"), fields.whole(message, "version")
        handle = fields.handle(message, "data_id", "policy")
        if handle is None:
            raise Refusal(400, "data_id must be the handle of the weights, got none")
        with self.run.lock:
            task = self._owned(message, "learner")
            if policy_id != task.info["policy_id"]:
                raise Refusal(404, f"this learner has the policy {task.info['policy_id']!r}, not {policy_id[:100]!r}")
        self.run.store.get(handle)
        with self.run.lock:
            self._owned(message, "learner")
            weights, commander = self.run.weights, self.scheduler.commander
            if not weights.is_newest(policy_id, handle):  # else the answer to it was lost
                snapshot = commander.wants_snapshot(policy_id, version)
                weights.publish(policy_id, version, handle, snapshot)
                if snapshot is not None:
                    self.run.changed()  # before the weights go of one that perhaps gave way
                weights.keep_only(commander.needed_policies())
            return {"serial": weights.serials()[policy_id]}

    def deal_with_learner_finish_task(self, message: Message) -> Message:
        """Note that a learner is done, or that it lets its task go to another."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "learner"), read_info(message)
                self._note_info(task, info)
                self._finish(task, info, self.deal_with_learner_judge_finish(task.task_id, info))
                self.run.changed()
        return {}

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a learner's info says that its task is over."""
        return self.scheduler.commander.judge_learner_finish(task_id, info)

    def _amount(self, message: Message) -> tuple[int, int]:
        """Return how many transitions a minibatch and how many minibatches a round is to have.

        Raises:
            Refusal: 422, if they are far more than a round of the policy has.
        """
        batch_size, num_batches = fields.whole(message, "batch_size", 1), fields.whole(message, "num_batches", 1)
        limit = LARGEST_ROUND * self.run.settings.round_size
        if batch_size * num_batches > limit:
            raise Refusal(422, f"a round must have at most {limit} transitions, got {batch_size} * {num_batches}")
        return batch_size, num_batches

    def _put(self, batch: dict[str, Any]) -> Any:
        """Return the handle of a round; very old ones go, whose learner never got the answer."""
        handle = self.run.store.put("batch", batch)
        with self.run.lock:
            self._rounds.append(handle)
            forgotten = self._rounds.popleft() if len(self._rounds) > KEPT_ROUNDS else None
        if forgotten is not None:
            self.run.store.delete(forgotten)
        return handle

    def _take_priorities(self, replay: Replay, handle: Any) -> None:
        try:
            replay.update(self.run.store.get(handle).tensors)
        except Refusal as refusal:
            if refusal.status != GONE:
                raise
            logger.info("priorities were taken before, as their answer was lost: %s", refusal)
        finally:
            self.run.store.delete(handle)

    def _note_info(self, task: Task, info: Mapping[str, Any]) -> None:
        self.run.results.note_learner(info)
        self.scheduler.commander.update_learner_info(task.task_id, info)
