"""The coordinator's answers to learners."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import messages
from lightning_ding.distributed.coordinator.replay import Replay
from lightning_ding.distributed.coordinator.run_state import RunState
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.distributed.coordinator.worker_endpoint import Endpoint
from lightning_ding.distributed.messages import read_info, read_sample_options
from lightning_ding.distributed.transport import Message, Refusal

logger = logging.getLogger(__name__)

KEPT_ROUNDS = 64  # rounds that learners have requested and may not have read yet
LARGEST_ROUND = 64  # largest size of a round, in rounds of the policy
GONE = 404  # status of a block that was read and deleted before


class LearnerEndpoint(Endpoint):
    """Answers the messages of learners.

    Args:
        run: State of the run.
    """

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._rounds: deque[Any] = deque()  # handles of the newest rounds, which may not have been read yet
        self._answers: dict[tuple[str, int, int], Message] = {}  # the newest answers, which may not have arrived

    def deal_with_learner_get_data(self, message: Message) -> Message:
        """Draw a round and put it into the store, or answer how long to wait.

        A request that is repeated with the same ``number`` gets the same answer, so that no episode statistics are lost
        with an answer.
        """
        if message.get("number") is None:
            return self._answer_get_data(message)
        rank, number = messages.whole(message, "rank"), messages.whole(message, "number")
        key = (messages.text(message, "run_id"), rank, number)
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
        train_iter, rank = messages.whole(message, "cur_learner_iter"), messages.whole(message, "rank")
        options = read_sample_options(message)
        with self.run.lock:
            task = self._owned(message, "learner")
            replay, policy_version = self.run.replay(task.buffer_id), self.run.policy_version(task.buffer_id)
            stops = task.is_closing
        batch = None if stops else replay.draw(*amount, train_iter, options, policy_version)
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
        """Pass priorities to the buffer and the progress of a learner to the commander."""
        info = read_info(message)
        train_iter, priorities = info["learner_step"], messages.handle(info, "priority_info", "priority")
        info.pop("priority_info", None)
        with self.run.lock:
            task = self._owned(message, "learner")
            replay = self.run.replay(task.buffer_id)
            if train_iter > self.run.results.train_iter:
                self.scheduler.note_progress(task)
            self._note_info(task, info)
        if priorities is not None:
            self._take_priorities(replay, priorities)
        return {}

    def deal_with_learner_send_policy(self, message: Message) -> Message:
        """Publish new weights; refuse weights that cannot be read."""
        policy_id, policy_version = messages.text(message, "policy_id"), messages.whole(message, "version")
        handle = messages.handle(message, "data_id", "policy")
        if handle is None:
            raise Refusal(400, "data_id must be the handle of the weights, got None")
        with self.run.lock:
            task = self._owned(message, "learner")
            if policy_id != task.info["policy_id"]:
                raise Refusal(
                    404, f"policy_id must be {task.info['policy_id']!r} in this task, got {policy_id[:100]!r}"
                )
        self.run.store.get(handle)
        with self.run.lock:
            self._owned(message, "learner")
            weights, commander = self.run.weights, self.scheduler.commander
            if not weights.is_newest(policy_id, handle):  # otherwise the answer to this message was lost
                snapshot = commander.wants_snapshot(policy_id, policy_version)
                weights.publish(policy_id, policy_version, handle, snapshot)
                if snapshot is not None:
                    self.run.changed()  # before weights are deleted that this snapshot may replace
                weights.keep_only(commander.needed_policies())
            return {"serial": weights.serials()[policy_id]}

    def deal_with_learner_finish_task(self, message: Message) -> Message:
        """Record that a learner has finished or released its task."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "learner"), read_info(message)
                self._note_info(task, info)
                self._finish(task, info, self.deal_with_learner_judge_finish(task.task_id, info))
                self.run.changed()
        return {}

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the info of a learner marks its task as done."""
        return self.scheduler.commander.judge_learner_finish(task_id, info)

    def _amount(self, message: Message) -> tuple[int, int]:
        """Return the requested transitions of a minibatch and minibatches of a round.

        Raises:
            Refusal: 422, if the round would be far larger than a round of the policy.
        """
        batch_size, num_batches = messages.whole(message, "batch_size", 1), messages.whole(message, "num_batches", 1)
        limit = LARGEST_ROUND * self.run.settings.round_size
        if batch_size * num_batches > limit:
            raise Refusal(422, f"a round must have at most {limit} transitions, got {batch_size} * {num_batches}")
        return batch_size, num_batches

    def _put(self, batch: dict[str, Any]) -> Any:
        """Store a round and return its handle; delete a very old one, whose learner never got the answer."""
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
            logger.info("these priorities were applied before, and the answer was lost: %s", refusal)
        finally:
            self.run.store.delete(handle)

    def _note_info(self, task: Task, info: Mapping[str, Any]) -> None:
        self.run.results.note_learner(info)
        self.scheduler.commander.update_learner_info(task.task_id, info)
