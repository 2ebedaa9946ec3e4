"""A learning worker: takes tasks from the coordinator, and trains a policy in a Trainer on the collected data.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from lightning.pytorch import Callback
from typing_extensions import override

from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.distributed.comm_worker.columns import ColumnAnnouncer
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.comm_worker.ranks import RankZero, global_rank, tasks_of_rank_zero
from lightning_ding.distributed.comm_worker.remote_learner import RemoteLearner
from lightning_ding.distributed.comm_worker.role import CommRole
from lightning_ding.distributed.config import LearningTask
from lightning_ding.distributed.published_weights import publish_weights
from lightning_ding.distributed.transport import CoordinatorGoneError, Message, Refusal, Role

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT = 3.0  # seconds for the message that releases the task when a signal ends the process
FAILED = 1  # exit code of rank zero after a failure, for which torchrun or Ray restarts all ranks
GONE = (404, 422)  # status of a round that was deleted or is truncated; the next one replaces it


class CommLearner(CommRole):
    """Trains policies for a coordinator with the data that it sends, and publishes their weights.

    With ``learner.multi_gpu`` the Trainer runs on several ranks, which Lightning starts with the same command or
    torchrun has started. All but rank zero take part in the task of rank zero. See the base class for the arguments.
    """

    role: ClassVar[Role] = "learner"
    learner: Any = None
    """Learner of the current task, a :class:`RemoteLearner`."""
    _task = LearningTask()
    _ranks: RankZero
    _requests: Iterator[int]

    @override
    def _do_tasks(self, worker: CommWorker) -> int:
        self._requests = itertools.count()
        if global_rank() > 0:
            for worker_id, task in tasks_of_rank_zero():  # under its worker id
                worker.worker_id, worker.task = worker_id, task
                self._run_learner(self._create_learner(task.task_info))
            return 0
        self._ranks = RankZero()
        try:
            return worker.run(self._work)
        finally:
            self._ranks.close()

    @override
    def _stop(self) -> None:
        if self.learner is not None:
            self.learner.close()

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end.

        After a failure, rank zero leaves if torchrun or Ray has started the others, which wait for it in a collective
        operation and cannot do another task.
        """
        learner = self.learner = self._create_learner(task.task_info)
        worker = self._connected()
        self._ranks.share(worker.worker_id, task)
        has_failed = True
        try:
            self._run_learner(learner)
            has_failed = False
        except SystemExit:
            self._release_task(learner.train_iter)
            raise
        finally:
            self.learner = None
            self._ranks.end_task(getattr(learner, "trainer", None), has_failed)
            if has_failed and self._ranks.are_started_elsewhere:
                worker.leave(FAILED)
        if self._is_closed:  # by its owner, so another learner continues
            self._release_task(learner.train_iter)
            return
        done = {"learner_step": learner.train_iter, "learner_done": True, "results": getattr(learner, "results", {})}
        worker.call("learner_close_task", info=done)

    def _run_learner(self, learner: Any) -> None:
        """Run a learner until its task is over."""
        learner.start()

    def _release_task(self, train_iter: int) -> None:
        """Release the task for another learner; if the message takes too long, the end of the lease releases it."""

        def send() -> None:
            try:
                info = {"learner_step": train_iter, "learner_done": False, "results": {}}
                self._connected().call("learner_close_task", info=info)
            except (Refusal, CoordinatorGoneError) as error:
                logger.info("the learner could not report that it releases its task: %s", error)

        sender = threading.Thread(target=send, name="release task", daemon=True)
        sender.start()
        sender.join(RELEASE_TIMEOUT)

    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        """Return the :class:`RemoteLearner` of a task."""
        self._task = task = LearningTask.read(task_info)
        is_game = self.config.system.collector.type == "marine"
        announcer = ColumnAnnouncer(task.policy, self.send_columns, is_game)
        return RemoteLearner(task, self._source(), [announcer, *self._callbacks()], is_game)

    def _source(self) -> Any:
        """Return the source of the rounds, see ``DataSource``."""
        return SimpleNamespace(get_data=self.get_round)

    def _callbacks(self) -> list[Callback]:
        """Return the callbacks of the Trainer that send weights, progress and priorities to the coordinator."""
        every = self._task.learner.send_policy_freq
        return [WeightPublisher(self.send_policy, every), LearningReporter(self.send_learn_info, every)]

    def send_columns(self, columns: Mapping[str, Any]) -> None:
        """Announce the columns of transitions, against which the coordinator holds all blocks of collectors.

        A subclass whose collectors send further columns adds them here.

        Args:
            columns: ``columns``, the form of each column by its flat name: ``type``, ``shape``, and ``least`` and
                ``largest``, lists of limits or empty lists; and ``is_whole``, whether there may be no other columns.

        Raises:
            LeaseLostError: If another learner has the task now.
        """
        self._connected().call("learner_send_columns", **columns)

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish weights, see :func:`publish_weights`."""
        publish_weights(self._connected(), self._task, state_dict)

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report the progress after a round.

        Args:
            learn_info: ``learner_step``, ``learner_done``, metrics, and in ``priority_info`` tensors of ``priority``,
                ``replay_unique_id`` and ``replay_buffer_idx``, or None.

        Raises:
            LeaseLostError: If another learner has the task now.
            OSError: If the store has no space.
        """
        self._report(learn_info)

    def _report(self, learn_info: Mapping[str, Any]) -> Message:
        """Report the progress, and return the coordinator's answer."""
        worker, priorities = self._connected(), learn_info["priority_info"]
        handle = None if priorities is None else worker.channel.store.put("priority", priorities)
        return worker.call("learner_learn_task", info={**learn_info, "priority_info": handle})

    def get_round(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int = 0
    ) -> RemoteData:
        """Request a round of minibatches once, see :meth:`DataSource.get_data`.

        Raises:
            LeaseLostError: If another learner has the task now.
        """
        asked = {"batch_size": batch_size, "num_batches": num_batches, "cur_learner_iter": cur_learner_iter}
        asked["number"] = next(self._requests)  # identifies a request that is repeated because its answer was lost
        answer = self._connected().call("learner_get_data_task", **asked, options=dict(options), rank=rank)
        episodes = answer.get("episodes") or {}
        return RemoteData(
            data=None if answer["data"] is None else self._take(answer["data"]),
            wait=float(answer["wait"]),
            stop=bool(answer["stop"]),
            progress=answer["progress"],
            returns=episodes.get("returns", ()),
            lengths=episodes.get("lengths", ()),
            infos=episodes.get("infos", ()),
            dropped=int(episodes.get("dropped", 0)),
            stats=answer.get("stats", {}),
        )

    def _take(self, handle: Any) -> dict[str, Any] | None:
        """Return a round and delete it from the store; None if it is missing or truncated."""
        store = self._connected().channel.store
        try:
            return store.get(handle).tensors
        except Refusal as refusal:
            if refusal.status not in GONE:
                raise
            logger.warning("a round of minibatches is lost: %s", refusal.reason)
            return None
        finally:
            store.delete(handle)
