"""A learning worker: takes tasks from the coordinator, and trains a policy in a Trainer on the collected data.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from typing_extensions import override

from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.config import require
from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.distributed.comm_worker.columns import ColumnAnnouncer
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.comm_worker.ranks import RankZero, global_rank, global_world_size, tasks_of_rank_zero
from lightning_ding.distributed.comm_worker.remote_learner import RemoteLearner
from lightning_ding.distributed.comm_worker.role import BaseCommRole
from lightning_ding.distributed.config import LearningTask, ParallelLearnerConfig
from lightning_ding.distributed.published_weights import publish_weights
from lightning_ding.distributed.transport import CoordinatorGoneError, Refusal, Role
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.foreign import foreign
from lightning_ding.worker import BaseLearner, LearnerHook, create_learner
from lightning_ding.worker.log import DEFAULT_EXPERIMENT

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT = 3.0  # seconds for the message that releases the task when a signal ends the process
FAILED = 1  # exit code of rank zero after a failure, for which torchrun or Ray restarts all ranks
GONE = (404, 422)  # status of a round that was deleted or is truncated; the next one replaces it


class BaseCommLearner(BaseCommRole):
    """Trains policies for a coordinator with the data that it sends, and publishes their weights.

    With ``learner.multi_gpu`` the Trainer runs on several ranks, which Lightning starts with the same command or
    torchrun has started. All but rank zero take part in the task of rank zero.

    A subclass may replace the way of the data: ``get_data(batch_size)`` returns the next batch, a list of transitions
    or of functions that load one; ``send_policy(state_dict)`` gets the weights and ``send_learn_info(info)`` the
    progress and the priorities; ``hooks4call`` returns the hooks that call the last two. Each of them may call the
    method of the base class, which communicates with the coordinator. Tasks and progress reach the coordinator in any
    case. See the base class for the arguments.
    """

    role: ClassVar[Role] = "learner"
    learner: BaseLearner | None = None
    """Learner of the current task."""
    _task = LearningTask()
    _ranks: RankZero
    _requests: Iterator[int]
    _progress: Mapping[str, int] = {}  # counters of the collected data, from the newest answer of the coordinator

    @property
    def learner_uid(self) -> str:
        """Random id of this worker."""
        return self._uid

    # ------------------------------------------------------------------ start and end

    @override
    def _do_tasks(self) -> int:
        self._ranks, self._requests = RankZero(), itertools.count()
        worker = self._make_worker()  # a Watchdog ends a learner that hangs
        try:
            if global_rank() > 0:
                return self._take_part(worker)
            self._ranks.open()
            try:
                return worker.run(self._work)
            finally:
                self._ranks.close()
        finally:
            self._disconnect()

    @override
    def close(self) -> None:
        """End the task after its current round, and disconnect from the coordinator; may be called repeatedly."""
        super().close()
        self._disconnect()

    @override
    def _stop(self) -> None:
        if self.worker is not None:
            self.worker.leave()
        if self.learner is not None:
            self.learner.close()

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end.

        After a failure, rank zero leaves if torchrun or Ray has started the others, which wait for it in a collective
        operation and cannot do another task.
        """
        learner = self.learner = self._create_learner(task.task_info)
        worker = self._connected()
        if self._overrides("get_data"):  # whose answers do not end the run
            worker.on_close = learner.close
        self._ranks.share(worker.worker_id, task)
        has_failed = True
        try:
            self._start(learner)
            has_failed = False
        except SystemExit:
            self._release_task(learner.train_iter)
            raise
        finally:
            self.learner = None
            if isinstance(learner, RemoteLearner):
                self._ranks.end_task(learner.trainer, has_failed)
            if has_failed and self._ranks.are_started_elsewhere:
                worker.leave(FAILED)
        if self._end_flag:  # closed by its owner, so another learner continues
            self._release_task(learner.train_iter)
            return
        done = {"learner_step": learner.train_iter, "learner_done": True, "results": getattr(learner, "results", {})}
        worker.call("learner_close_task", info=done)

    def _start(self, learner: BaseLearner) -> None:
        """Run a learner with the hooks of this worker, until its task is over."""
        if isinstance(learner, RemoteLearner):
            learner.start()  # it has its hooks already
            return
        callbacks = self.hooks4call if self._overrides("hooks4call") else self._plain_hooks()
        for hook in callbacks:
            if isinstance(hook, LearnerHook):
                learner.register_hook(hook)
        learner.start(callbacks=[one for one in callbacks if not isinstance(one, LearnerHook)])

    def _plain_hooks(self) -> list[Any]:
        return [*foreign("parallel_forms").hooks_of_comm_learner(self._task.learner.send_policy_freq)]

    def _take_part(self, worker: CommWorker) -> int:
        """Do the tasks of rank zero together with it, under its worker id; called on all other ranks."""
        for worker_id, task in tasks_of_rank_zero():
            worker.worker_id, worker.task = worker_id, task
            self._start(self._create_learner(task.task_info))
        return 0

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

    # ------------------------------------------------------------------ a task

    def _create_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        """Return the learner for a task, with ``get_data``, ``send_policy`` and ``send_learn_info`` as attributes.

        Args:
            task_info: A task of the coordinator; or without ``main``, ``learner_cfg``, the config of a
                learner and its ``exp_name``, and ``policy``, ``type`` and config of a policy that knows its shapes.

        Raises:
            ValueError: If the task cannot be done, for example because the policy is on-policy, or learns from
                sequences and gets lists of transitions.
        """
        if "main" not in task_info or self._overrides("get_data"):
            policy_class = get_policy_cls(task_info["policy"])
            takes_single = not (policy_class.learns_from_sequences or policy_class.on_policy)
            require(takes_single, "policy", foreign("parallel_forms").SINGLE, task_info["policy"]["type"])
        learner = self._task_learner(task_info) if "main" in task_info else self._plain_learner(task_info)
        if not isinstance(learner, RemoteLearner):
            options = {"n_step": 1, "discount_factor": 1.0, **_options(learner)}
            learner.setup_dataloader(foreign("parallel_forms").ColumnsOf(self.get_data, **options))
        for name in ("get_data", "send_policy", "send_learn_info"):
            setattr(learner, name, getattr(self, name))
        return learner

    def _task_learner(self, task_info: Mapping[str, Any]) -> RemoteLearner:
        task = LearningTask.read(task_info)
        if self._has_worker_config and self.config.system.learner.multi_gpu:
            devices = {**self.config.system.learner.trainer, **task.learner.trainer}
            task = replace(task, learner=replace(task.learner, multi_gpu=True, trainer=devices))
        self._task = task
        is_game = self.config.system.collector.type == "marine"
        source: Any = _Rounds(self)
        if self._overrides("get_data"):
            source = foreign("parallel_forms").BatchSource(self.get_data, lambda: self._progress)
        announcer = ColumnAnnouncer(task.policy, self.send_columns, is_game)
        callbacks: list[Callback] = [announcer, *self.hooks4call]
        if self._overrides("send_learn_info") or self._overrides("hooks4call"):
            callbacks.append(LearningReporter(self._report_progress, task.learner.send_policy_freq))
        return RemoteLearner(task, source, callbacks, is_game)

    def _plain_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        learner_cfg, others = foreign("parallel_config").learner_section(task_info["learner_cfg"])
        settings = ParallelLearnerConfig(send_policy_freq=others.get("send_policy_freq", 1))
        policy_id = str(task_info.get("policy_id", ""))
        self._task = LearningTask(task_info["policy"], learner=settings, policy_id=policy_id)
        ranks = (global_rank(), global_world_size())
        exp_name = others.get("exp_name", DEFAULT_EXPERIMENT)
        learner = create_learner(learner_cfg, dist_info=ranks, exp_name=exp_name)
        learner.policy = create_policy(task_info["policy"], enable_field=["learn"])
        return learner

    @property
    def hooks4call(self) -> list[Callback]:
        """Callbacks of the Trainer that send weights, progress and priorities to the coordinator."""
        every = self._task.learner.send_policy_freq
        if not self._overrides("send_learn_info"):
            return [WeightPublisher(self.send_policy, every), LearningReporter(self.send_learn_info, every)]
        return [
            WeightPublisher(self.send_policy, every),
            foreign("parallel_forms").InfoForm(self.send_learn_info, every),
        ]

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

    def get_data(self, batch_size: int) -> list[Any]:
        """Wait for the next batch of the coordinator and return it.

        Args:
            batch_size: Number of transitions, >= 1.

        Returns:
            A list of ``batch_size`` dicts, each a transition as the policy learns from it; an empty list if the run is
            over.

        Raises:
            RuntimeError: If there is no task at the moment.
            ValueError: If the policy learns from sequences.
            LeaseLostError: If another learner has the task now.
        """
        learner = self.learner
        if learner is None:
            raise RuntimeError(f"{type(self).__name__} has no task, so there are no data for it")
        while not self._end_flag:
            answer = self.get_round(batch_size, 1, learner.train_iter, _options(learner))
            if answer.data is not None:
                return [self._item(row) for row in foreign("parallel_forms").transitions_of(answer.data)]
            if answer.stop:
                break
            threading.Event().wait(max(answer.wait, 0.002))
        return []

    def _item(self, transition: dict[str, Any]) -> Any:
        """Return the form in which :meth:`get_data` returns a transition."""
        return transition

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
        self._progress = answer["progress"]
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

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report the progress after a round.

        Args:
            learn_info: ``learner_step``, ``learner_done``, metrics, and in ``priority_info`` tensors or lists of
                ``priority``, ``replay_unique_id`` and ``replay_buffer_idx``, or nothing.

        Raises:
            LeaseLostError: If another learner has the task now.
            OSError: If the store has no space.
        """
        priorities = learn_info.get("priority_info") or None
        if priorities is not None:
            priorities = {name: torch.as_tensor(values) for name, values in priorities.items()}
        self._report({**learn_info, "priority_info": priorities})

    def _report_progress(self, info: Mapping[str, Any]) -> None:
        """Report the progress if a subclass sends the priorities in its own way."""
        self._report({**info, "priority_info": None})

    def _report(self, info: Mapping[str, Any]) -> None:
        worker, priorities = self._connected(), info["priority_info"]
        handle = None if priorities is None else worker.channel.store.put("priority", priorities)
        answer = worker.call("learner_learn_task", info={**info, "priority_info": handle})
        self._progress = answer.get("progress", self._progress)

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


class _Rounds:
    """The source of rounds of a learner whose class gets its data from the coordinator."""

    def __init__(self, comm_learner: BaseCommLearner) -> None:
        self.get_data = comm_learner.get_round


def _options(learner: BaseLearner) -> dict[str, Any]:
    """Return the options for sampling that the policy needs."""
    return policy_of(learner.policy).sample_options
