"""The answers of the coordinator: to all workers, to collectors and to learners."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from lightning_ding.distributed import messages
from lightning_ding.distributed.coordinator.intake import Sender
from lightning_ding.distributed.coordinator.replay import Replay
from lightning_ding.distributed.coordinator.run_state import RunState
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.distributed.transport import DISK_WAIT, ROLES, Message, Refusal, Role

logger = logging.getLogger(__name__)

TASK_WAIT = 1.0  # seconds that the answer to a request for a task is delayed until there is one
MAX_WAITING = 8  # requests for a task that may be delayed at a time
REPEATS = 200.0  # requests per second with which all waiting workers together ask again
KEPT_ROUNDS = 64  # rounds that learners have requested and may not have read yet
LARGEST_ROUND = 64  # largest size of a round, in rounds of the policy
GONE = 404  # status of a block that has already been read and deleted


class Endpoint:
    """Answers some of the messages to the coordinator.

    Args:
        run: State of the run.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.scheduler = run.scheduler

    def _owned(self, message: Message, role: Role | None = None) -> Task:
        """Return the task that a message is about, and renew the lease of its owner.

        Raises:
            Refusal: 404 for an unknown task, 400 for a task of the other role.
            LeaseLostError: If the sender no longer owns the task.
        """
        worker_id, run_id = messages.text(message, "worker_id"), messages.text(message, "run_id")
        self.scheduler.book.renew(worker_id)
        task = self.scheduler.book.owned(worker_id, messages.text(message, "task_id"), run_id)
        if role is not None and task.role != role:
            raise Refusal(400, f"this message is for a {role}'s task, got {task.task_id}, which is a {task.role}'s")
        return task

    def _pause(self) -> float:
        """Return the seconds after which a waiting worker may ask again, so that many of them do not ask too often."""
        return len(self.scheduler.book.workers) / REPEATS

    def _is_over(self, message: Message) -> bool:
        """Return whether the attempt that a message ends has already ended, because an answer was lost."""
        self.scheduler.book.renew(messages.text(message, "worker_id"))
        return messages.text(message, "run_id") in self.scheduler.book.over

    def _finish(self, task: Task, info: Mapping[str, Any]) -> bool:
        """End a task that its info marks as done, or release it for another worker; return whether it is done."""
        if not info.get(f"{task.role}_done", False):
            self.scheduler.release(task)
            return False
        try:
            self.scheduler.finish(task, info)
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(400, f"info is not the finish info of a {task.role}: {error!r}") from error
        return True


class WorkerEndpoint(Endpoint):
    """Answers the messages that collectors and learners have in common."""

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._num_waiting = 0  # workers whose requests for a task are being delayed

    def answer_connect(self, message: Message) -> Message:
        """Register a worker, if it has the same version as the coordinator."""
        theirs = messages.text(message, "version")
        if theirs != (ours := messages.version()):
            same = "all machines need the same lightning_ding"
            raise Refusal(426, f"the version of this run is {ours}, got {theirs[:100]}: {same}")
        role: Any = messages.text(message, "role")
        if role not in ROLES:
            raise Refusal(400, f"role must be one of {', '.join(ROLES)}, got {role[:100]!r}")
        messages.mapping(message, "resource")
        with self.run.lock:
            self.scheduler.book.connect(messages.text(message, "worker_id"), role)
        return {"lease": self.scheduler.book.lease}

    def answer_heartbeat(self, message: Message) -> Message:
        """Renew a lease, and answer whether the task is to be closed."""
        with self.run.lock:
            self.scheduler.book.renew(messages.text(message, "worker_id"))
            return {"close": self._owned(message).is_closing if message.get("task_id") is not None else False}

    def answer_task(self, message: Message) -> Message:
        """Answer with a task; without a task, delay the answer a little.

        Each delayed answer occupies a thread of the server. Above a limit, the answer is immediate and workers
        repeat their request.
        """
        worker_id = messages.text(message, "worker_id")
        with self.run.lock:
            before, may_wait = self._owners(), self._num_waiting < MAX_WAITING
            self._num_waiting += 1
            try:
                task, is_over = self._next_task(worker_id, TASK_WAIT if may_wait else 0.0)
            finally:
                self._num_waiting -= 1
            if is_over or self._owners() != before:
                self.run.changed()
            if task is None:
                wait = 0.0 if may_wait else max(TASK_WAIT, self._pause())
                return {"task": None, "shutdown": is_over, "wait": wait}
            about = {"task_id": task.task_id, "run_id": task.run_id, "task_info": task.info}
            return {"task": {"name": f"{task.role}_start_task", **about}, "shutdown": is_over, "wait": 0.0}

    def answer_fail(self, message: Message) -> Message:
        """Take a task away from a worker that reports an error."""
        with self.run.lock:
            if not self._is_over(message):
                self.scheduler.fail(self._owned(message), messages.text(message, "error"))
                self.run.changed()
        return {}

    def answer_disconnect(self, message: Message) -> Message:
        """Remove a worker, and release its task for another worker."""
        with self.run.lock:
            self.scheduler.disconnect(messages.text(message, "worker_id"))
            self.run.changed()
        return {}

    def answer_get_policy(self, message: Message) -> Message:
        """Answer with the handle of newer weights of a policy, if there are any."""
        serial = message.get("serial", -1)
        known = serial if isinstance(serial, int) else messages.whole(message, "serial")
        with self.run.lock:
            self.scheduler.book.renew(messages.text(message, "worker_id"))
            return self.run.weights.newer(messages.text(message, "policy_id"), known)

    def _next_task(self, worker_id: str, seconds: float) -> tuple[Task | None, bool]:
        """Return the next task, or None after ``seconds`` without one, and whether the run is over."""
        until = time.monotonic() + seconds
        while True:
            worker = self.scheduler.book.renew(worker_id)
            task = self.scheduler.next_task(worker)
            worker.knows_end = self.scheduler.is_over
            left = until - time.monotonic()
            if task is not None or worker.knows_end or left <= 0:
                return task, worker.knows_end
            self.run.lock.wait(left)

    def _owners(self) -> tuple[Any, ...]:
        """Return everything that expired leases and new tasks can change."""
        book = self.scheduler.book
        return (*book.workers, *((task.task_id, task.run_id, task.is_closing) for task in book.tasks.values()))


class CollectorEndpoint(Endpoint):
    """Answers the messages of collectors."""

    def answer_collector_data_task(self, message: Message) -> Message:
        """Accept transitions and their metadata, which are on the disk when this returns."""
        seq, serials = messages.whole(message, "seq"), messages.read_serials(message)
        metadata = messages.read_metadata(message)
        with self.run.lock:
            task = self._collecting(message)
            replay = self.run.replay(task.buffer_id)
            newest, forced = self.run.newest(task.buffer_id), self.scheduler.is_over
            sender = Sender(str(task.run_id), task.slot, task.run_number)
            if serials.get(task.info["collector_cfg"]["policy_update_path"][0], newest.since) < newest.since:
                metadata["is_former"] = True  # the same version may be of other weights
            pause = self._pause()
        wait, data_id = max(replay.collector_wait(), pause), messages.handle(message, "data_id", "data")
        try:
            with self.run.held(data_id):
                verdict = replay.accept(sender, seq, data_id, metadata, newest, forced)
        except OSError as error:
            logger.error("data of %s cannot be written: %s", sender.run_id, error)
            verdict, wait = "wait", DISK_WAIT
        holds = self._holds(task, sender.run_id, replay)
        with self.run.lock:
            if verdict == "accepted":
                self._note_data(task, is_progress=data_id is not None or metadata["samples_elsewhere"] > 0)
            taken = {"accepted": verdict != "wait", "duplicate": verdict == "duplicate", "hold": holds}
            return {**taken, "wait": wait if verdict == "wait" else 0.0, **self._settings(task, replay, serials)}

    def answer_collector_settings(self, message: Message) -> Message:
        """Answer with the settings of a collector that has delivered its part of a rollout."""
        serials = messages.read_serials(message)
        with self.run.lock:
            task = self._collecting(message)
            replay, pause = self.run.replay(task.buffer_id), self._pause()
        holds = self._holds(task, messages.text(message, "run_id"), replay)
        wait = max(replay.rollout_wait(), pause) if holds else 0.0
        with self.run.lock:
            return {"hold": holds, "wait": wait, **self._settings(task, replay, serials)}

    def answer_collector_close_task(self, message: Message) -> Message:
        """Record the end of a collecting or evaluating task."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "collector"), messages.mapping(message, "info")
                is_done = self._finish(task, info)
                if is_done and task.is_evaluation:
                    self.run.results.note_evaluation(info, self.run.env_step())
                self.run.changed()
        return {}

    def _collecting(self, message: Message) -> Task:
        """Return the collecting task that a message is about, see :meth:`_owned`; refuse an evaluation."""
        task = self._owned(message, "collector")
        if task.is_evaluation:
            raise Refusal(400, f"the task {task.task_id} is an evaluation, which sends no data")
        return task

    def _holds(self, task: Task, run_id: str, replay: Replay) -> bool:
        """Return whether a collector waits for newer weights.

        The lock of the run must not be held, because a snapshot may be written.
        """
        if replay.intake.rollout is None:
            return False
        with self.run.lock:
            working, newest = self.scheduler.working(), self.run.newest(task.buffer_id)
        return replay.holds(run_id, working, newest)

    def _settings(self, task: Task, replay: Replay, known: dict[str, int]) -> Message:
        """Return the settings with which a collector continues, and the weights that are newer than the known serials.

        With newer weights of these policies in the answer, the collector need not ask for them.
        """
        weights, paths = self.run.weights, task.info["collector_cfg"]["policy_update_path"]
        serials = weights.serials()
        newer = {path: weights.newer(path, known[path]) for path in paths if path in known}
        newer = {path: one for path, one in newer.items() if one["handle"] is not None}
        return {
            "close": task.is_closing,
            "policy": {path: serials[path] for path in paths if path in serials},
            "weights": {path: one["handle"] for path, one in newer.items()},
            "policy_version": {path: one["policy_version"] for path, one in newer.items()},
            "collect_setting": self.scheduler.commander.collect_setting(replay.counts.env_step),
            "random": replay.counts.sample < self.run.settings.random,
        }

    def _note_data(self, task: Task, is_progress: bool) -> None:
        if is_progress:  # the first message of a task has no data
            self.scheduler.note_progress(task)
        limit = self.run.config.main.max_env_step
        if limit is not None and not self.scheduler.is_over and self.run.env_step() >= limit:
            self.scheduler.end("max_env_step")
            self.run.changed()


class LearnerEndpoint(Endpoint):
    """Answers the messages of learners."""

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._rounds: deque[Any] = deque()  # handles of the newest rounds, which may not have been read yet
        self._answers: dict[tuple[str, int, int], Future[Message]] = {}  # the newest, which may not have arrived

    def answer_learner_get_data_task(self, message: Message) -> Message:
        """Draw a round and put it into the store, or answer how long to wait.

        A request that is repeated with the same ``number`` gets the same answer, also if it arrives while the round is
        drawn, so that no round is drawn twice and no episode statistics are lost with an answer.
        """
        if message.get("number") is None:
            return self._answer_get_data(message)
        rank, number = messages.whole(message, "rank"), messages.whole(message, "number")
        key = (messages.text(message, "run_id"), rank, number)
        with self.run.lock:
            self._owned(message, "learner")
            known = self._answers.get(key)
            answer = self._answers.setdefault(key, Future())
            if len(self._answers) > KEPT_ROUNDS:
                del self._answers[next(iter(self._answers))]
        if known is not None:
            return known.result()
        try:
            answer.set_result(self._answer_get_data(message))
        except BaseException as error:
            with self.run.lock:
                self._answers.pop(key, None)  # a later copy of the message may succeed
            answer.set_exception(error)
            raise
        return answer.result()

    def _answer_get_data(self, message: Message) -> Message:
        batch_size, num_batches = messages.whole(message, "batch_size", 1), messages.whole(message, "num_batches", 1)
        limit = LARGEST_ROUND * self.run.settings.round_size
        if batch_size * num_batches > limit:
            raise Refusal(422, f"a round must have at most {limit} transitions, got {batch_size} * {num_batches}")
        train_iter, rank = messages.whole(message, "cur_learner_iter"), messages.whole(message, "rank")
        options = messages.read_sample_options(message, self.run.settings.sample_options)
        with self.run.lock:
            task = self._owned(message, "learner")
            replay, newest = self.run.replay(task.buffer_id), self.run.newest(task.buffer_id)
            stops = task.is_closing
        if stops and self.scheduler.ended_by == "max_env_step":
            stops = not replay.has_rollout(newest)  # the last env steps are learned from, too
        batch = None if stops else replay.draw(batch_size, num_batches, train_iter, options, newest)
        return {
            "data": None if batch is None else self._put(batch),
            "wait": 0.0 if stops or batch is not None else replay.learner_wait(),
            "stop": stops,
            "progress": _progress(replay),
            "episodes": replay.pop_episodes() if rank == 0 else {"returns": [], "lengths": [], "dropped": 0},
            "stats": replay.stats(),
        }

    def answer_learner_learn_task(self, message: Message) -> Message:
        """Pass priorities to the buffer and the progress of a learner to the commander."""
        info = messages.read_info(message)
        train_iter, priorities = info["learner_step"], messages.handle(info, "priority_info", "priority")
        info.pop("priority_info", None)
        try:
            with self.run.lock:
                task = self._owned(message, "learner")
                replay = self.run.replay(task.buffer_id)
                if train_iter > self.run.results.train_iter:
                    self.scheduler.note_progress(task)
                self._note_info(task, info)
        except Refusal:
            if priorities is not None:
                self._delete_refused(priorities)
            raise
        if priorities is None:
            return {"progress": _progress(replay)}
        try:
            replay.update(self.run.store.get(priorities).tensors)
        except Refusal as refusal:
            if refusal.status != GONE:
                raise
            logger.info("these priorities have already been applied; the previous answer was lost: %s", refusal)
        finally:
            self.run.store.delete(priorities)
        return {"progress": _progress(replay)}

    def answer_learner_send_columns(self, message: Message) -> Message:
        """Hold the blocks of collectors against the columns that a learner learns from, from now on."""
        columns = messages.read_columns(message)
        with self.run.lock:
            buffer_id = self._owned(message, "learner").buffer_id
        self.run.announce(buffer_id, columns)  # without the lock, which must not be held during one of a buffer
        return {}

    def answer_learner_send_policy(self, message: Message) -> Message:
        """Publish new weights; refuse weights that cannot be read. Refused weights are deleted."""
        handle = messages.handle(message, "data_id", "policy")
        if handle is None:
            raise Refusal(400, "data_id must be the handle of the weights, got None")
        with self.run.held(handle):
            try:
                return self._publish(message, handle)
            except Refusal:
                self._delete_refused(handle)
                raise

    def _publish(self, message: Message, handle: Any) -> Message:
        policy_id, policy_version = messages.text(message, "policy_id"), messages.whole(message, "policy_version")
        with self.run.lock:
            task = self._owned(message, "learner")
            allowed = task.info["policy_id"]
            if policy_id != allowed:
                raise Refusal(404, f"policy_id must be {allowed!r} in this task, got {policy_id[:100]!r}")
        self.run.store.get(handle)
        with self.run.lock:
            self._owned(message, "learner")
            weights, commander = self.run.weights, self.scheduler.commander
            if weights.newer(policy_id, -1)["handle"] != handle:  # otherwise the answer to this message was lost
                snapshot = commander.wants_snapshot(policy_id, policy_version)
                weights.publish(policy_id, policy_version, handle, snapshot)
                if snapshot is not None:
                    self.run.changed()
            weights.write()  # if that failed for an earlier copy of this message
        self.run.commit()  # before weights are deleted that this snapshot may replace
        with self.run.lock:
            weights.keep_only(commander.needed_policies(self.scheduler.contents("collector")))
            return {"serial": weights.serials()[policy_id]}

    def answer_learner_close_task(self, message: Message) -> Message:
        """Record that a learner has finished or released its task."""
        with self.run.lock:
            if not self._is_over(message):
                task, info = self._owned(message, "learner"), messages.read_info(message)
                self._note_info(task, info)
                self._finish(task, info)
                self.run.changed()
        return {}

    def _put(self, batch: dict[str, Any]) -> Any:
        """Store a round and return its handle; delete a very old one, whose learner never got the answer."""
        handle = self.run.store.put("batch", batch)
        with self.run.lock:
            self._rounds.append(handle)
            forgotten = self._rounds.popleft() if len(self._rounds) > KEPT_ROUNDS else None
        if forgotten is not None:
            self.run.store.delete(forgotten)
        return handle

    def _delete_refused(self, handle: Any) -> None:
        """Delete the block of a refused message, unless it holds weights that an earlier copy has published."""
        with self.run.lock, suppress(Refusal):  # a malformed handle belongs to no block
            if handle not in self.run.weights.handles():
                self.run.store.delete(handle)

    def _note_info(self, task: Task, info: Mapping[str, Any]) -> None:
        self.run.results.note_learner(info)
        self.scheduler.commander.note_learner(info)


def _progress(replay: Replay) -> dict[str, int]:
    """Return the counters of the collected data."""
    counts = replay.counts
    return {"env_step": counts.env_step, "episode": counts.episode, "sample": counts.sample}
