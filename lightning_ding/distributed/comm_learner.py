"""The process that learns: it takes learning tasks from the coordinator, and talks to it while a Trainer runs."""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback

from lightning_ding.callbacks.publish_weights import WeightPublisher
from lightning_ding.callbacks.report_learning import LearningReporter
from lightning_ding.config import ConfigLike, resolve
from lightning_ding.datamodules.remote_round import RemoteData
from lightning_ding.distributed.channel import Channel
from lightning_ding.distributed.config import LearnerConfig, ParallelConfig
from lightning_ding.distributed.errors import CoordinatorGoneError, Refusal
from lightning_ding.distributed.learner import LearningTask, RemoteLearner
from lightning_ding.distributed.ranks import RankZero, global_rank, tasks_of_rank_zero
from lightning_ding.distributed.worker_loop import CommWorker, Task

logger = logging.getLogger(__name__)

LETS_GO = 3.0  # seconds for the message that the task is let go, when a signal ends the process
GONE = (404, 422)  # of a round that was deleted, or is torn: another one will come


class BaseCommLearner(ABC):
    """Learns what the coordinator says, from data that it sends, and publishes weights; a subclass knows the way to it.

    With ``learner.multi_gpu`` the Trainer runs on several ranks: those that Lightning starts by the same command, or
    those of torchrun, find here that they are not the first one, and take part in its task.

    Args:
        cfg: The config of the whole run, or a mapping to merge over its defaults.
        channel: The way to the coordinator, which stays the caller's; None makes the subclass's own.
    """

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None, channel: Channel | None = None) -> None:
        self.config: ParallelConfig = resolve(ParallelConfig, cfg)
        self.learner: RemoteLearner | None = None
        """Of the task that is being done."""
        self.worker: CommWorker
        self._given = channel
        self._channel: Channel | None = channel
        self._learner_config = LearnerConfig()
        self._policy_id = ""
        self._questions = itertools.count()

    @abstractmethod
    def _make_channel(self) -> Channel:
        """Return the way to the coordinator."""

    # ------------------------------------------------------------------ life

    def start(self) -> int:
        """Do learning tasks until the run is over.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`.

        Raises:
            SystemExit: If a signal ended a task; its checkpoint is written, and it is let go.
            Refusal: If this learner is not wanted.
        """
        if self._channel is None:
            self._channel = self._make_channel()
        self.worker = CommWorker(self._channel, "learner")  # one that hangs is ended by its Watchdog
        try:
            if global_rank() > 0:
                return self._take_part()
            self._ranks = RankZero()
            try:
                return self.worker.run(self._work)
            finally:
                self._ranks.close()
        finally:
            self.close()

    def close(self) -> None:
        """Say goodbye, and let go of the channel that was made here; any number of times."""
        if hasattr(self, "worker"):
            self.worker.close()
        if self._channel is not None and self._given is None:
            self._channel.close()
            self._channel = None

    def _work(self, task: Task) -> None:
        """Do a task, and close it."""
        learner = self.learner = self._create_learner(task.task_info)
        self._ranks.tell(self.worker.worker_id, task)
        has_failed = True
        try:
            results = learner.start()
            has_failed = False
        except SystemExit:
            self._let_go(learner.policy.progress.train_iter)
            raise
        finally:
            self.learner = None
            self._ranks.end_task(learner.trainer, has_failed)
        info = {"learner_step": learner.learner_step, "learner_done": True, "results": results}
        self.worker.call("learner_close_task", info=info)

    def _take_part(self) -> int:
        """Do the tasks of rank zero with it, on another rank, in its name."""
        for worker_id, task in tasks_of_rank_zero():
            self.worker.worker_id, self.worker.task = worker_id, task
            self._create_learner(task.task_info).start()
        return 0

    def _let_go(self, learner_step: int) -> None:
        """Say that another learner may go on with the task; if that takes too long, the lease will say it."""

        def say() -> None:
            try:
                info = {"learner_step": learner_step, "learner_done": False, "results": {}}
                self.worker.call("learner_close_task", info=info)
            except (Refusal, CoordinatorGoneError) as error:
                logger.info("the learner could not say that it lets its task go: %s", error)

        speaker = threading.Thread(target=say, name="lets go", daemon=True)
        speaker.start()
        speaker.join(LETS_GO)

    # ------------------------------------------------------------------ a task

    def _create_learner(self, task_info: Mapping[str, Any]) -> RemoteLearner:
        """Return what learns in a task.

        Raises:
            ValueError: If the task cannot be done, as that of a policy that learns from rollouts.
        """
        task = LearningTask.read(task_info)
        self._learner_config, self._policy_id = task.learner, task_info["policy_id"]
        is_game = self.config.system.collector.type == "marine"
        return RemoteLearner(task, self, self.hooks4call, is_game)

    @property
    def hooks4call(self) -> list[Callback]:
        """Callbacks of the Trainer that tell the coordinator how learning goes."""
        every = self._learner_config.send_policy_freq
        return [WeightPublisher(self.send_policy, every), LearningReporter(self.send_learn_info, every)]

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish weights.

        Args:
            state_dict: ``model``, flat tensors by name; ``iter``, the updates that they have seen; and where
                observations are normalised ``normaliser``, flat tensors by name.

        Raises:
            LeaseLostError: If the task has gone to another learner.
            OSError: If the store has no room.
        """
        version = int(state_dict["iter"])
        tensors = {part: state_dict[part] for part in ("model", "normaliser") if part in state_dict}
        block = tensors if len(tensors) > 1 else tensors["model"]
        handle = self.worker.channel.store.put("policy", block, {"version": str(version)})
        self.worker.call("learner_send_policy", policy_id=self._policy_id, version=version, data_id=handle)

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int = 0
    ) -> RemoteData:
        """Ask once for a round.

        Args:
            batch_size: Transitions of a minibatch.
            num_batches: Minibatches of the round.
            cur_learner_iter: Updates done so far.
            options: Further arguments of the buffer's ``sample``, such as ``n_step``.
            rank: Of the learner that asks.

        Returns:
            The answer, whose ``data`` is None while there is too little, or when the run is over.

        Raises:
            LeaseLostError: If the task has gone to another learner.
        """
        asked = {"batch_size": batch_size, "num_batches": num_batches, "cur_learner_iter": cur_learner_iter}
        asked["number"] = next(self._questions)  # one that is sent again, as its answer was lost, is known by it
        answer = self.worker.call("learner_get_data_task", **asked, options=dict(options), rank=rank)
        episodes = answer.get("episodes") or {}
        return RemoteData(
            data=None if answer["data"] is None else self._take(answer["data"]),
            wait=float(answer["wait"]),
            stop=bool(answer["stop"]),
            progress=answer["progress"],
            returns=episodes.get("returns", ()),
            lengths=episodes.get("lengths", ()),
            dropped=int(episodes.get("dropped", 0)),
            stats=answer.get("stats", {}),
        )

    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        """Report a round.

        Args:
            info: ``learner_step``, ``learner_done``, numbers, and in ``priority_info`` tensors or None.

        Raises:
            LeaseLostError: If the task has gone to another learner.
            OSError: If the store has no room.
        """
        priorities = info["priority_info"]
        handle = None if priorities is None else self.worker.channel.store.put("priority", priorities)
        self.worker.call("learner_learn_task", info={**info, "priority_info": handle})

    def _take(self, handle: Any) -> dict[str, Any] | None:
        """Return a round out of the store, which forgets it; None if it is not there."""
        store = self.worker.channel.store
        try:
            return store.get(handle).tensors
        except Refusal as refusal:
            if refusal.status not in GONE:
                raise
            logger.warning("a round to learn from is lost: %s", refusal.reason)
            return None
        finally:
            store.delete(handle)
