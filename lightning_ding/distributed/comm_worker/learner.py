"""A learning worker: takes tasks from the coordinator, and trains a policy in a Trainer on the collected data."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.callbacks import BestCheckpoint
from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import require
from lightning_ding.datamodules.remote import DataSource, RemoteReplayDataModule, Spaces
from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.distributed.collector.marine import find_game
from lightning_ding.distributed.comm_worker.loop import AssignedTask, BaseCommRole, CommWorker
from lightning_ding.distributed.comm_worker.ranks import RankZero, global_rank, tasks_of_rank_zero
from lightning_ding.distributed.config import EnvConfig, LearningTask
from lightning_ding.distributed.published_weights import publish_weights
from lightning_ding.distributed.transport import CoordinatorGoneError, Refusal
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.policy import create_policy, get_policy_cls

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT = 3.0  # seconds for the message that releases the task when a signal ends the process
GONE = (404, 422)  # status of a round that was deleted or is truncated; the next one replaces it


class BaseCommLearner(BaseCommRole):
    """Trains policies for a coordinator with the data that it sends, and publishes their weights.

    With ``learner.multi_gpu`` the Trainer runs on several ranks, which Lightning starts with the same command or
    torchrun has started. All but rank zero take part in the task of rank zero. See the base class for the arguments.
    """

    learner: RemoteLearner | None = None
    """Learner of the current task."""
    _task = LearningTask()
    _ranks: RankZero
    _requests: Iterator[int]

    # ------------------------------------------------------------------ start and end

    def start(self) -> int:
        """Do learning tasks until the run is over.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`.

        Raises:
            SystemExit: If a signal ended a task, after its checkpoint was written and the task released.
            Refusal: If the coordinator refuses this learner.
        """
        self._ranks, self._requests = RankZero(), itertools.count()
        worker = self._make_worker("learner")  # a Watchdog ends a learner that hangs
        try:
            if global_rank() > 0:
                return self._take_part(worker)
            self._ranks.open()
            try:
                return worker.run(self._work)
            finally:
                self._ranks.close()
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect from the coordinator, and close the channel that was made here; may be called repeatedly."""
        if self.worker is not None:
            self.worker.close()
        self._close_channel()

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end."""
        learner = self.learner = self._create_learner(task.task_info)
        self._ranks.share(self._connected().worker_id, task)
        has_failed = True
        try:
            results = learner.start()
            has_failed = False
        except SystemExit:
            self._release_task(learner.policy.progress.train_iter)
            raise
        finally:
            self.learner = None
            self._ranks.end_task(learner.trainer, has_failed)
        info = {"learner_step": learner.train_iter, "learner_done": True, "results": results}
        self._connected().call("learner_close_task", info=info)

    def _take_part(self, worker: CommWorker) -> int:
        """Do the tasks of rank zero together with it, under its worker id; called on all other ranks."""
        for worker_id, task in tasks_of_rank_zero():
            worker.worker_id, worker.task = worker_id, task
            self._create_learner(task.task_info).start()
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

    def _create_learner(self, task_info: Mapping[str, Any]) -> RemoteLearner:
        """Return the learner for a task.

        Raises:
            ValueError: If the task cannot be done, for example because the policy is on-policy.
        """
        self._task = task = LearningTask.read(task_info)
        is_game = self.config.system.collector.type == "marine"
        return RemoteLearner(task, self, self.hooks4call, is_game)

    @property
    def hooks4call(self) -> list[Callback]:
        """Callbacks of the Trainer that send weights, progress and priorities to the coordinator."""
        every = self._task.learner.send_policy_freq
        return [WeightPublisher(self.send_policy, every), LearningReporter(self.send_learn_info, every)]

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish weights, see :func:`publish_weights`."""
        publish_weights(self._connected(), self._task, state_dict)

    def get_data(
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
            dropped=int(episodes.get("dropped", 0)),
            stats=answer.get("stats", {}),
        )

    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        """Report the progress after a round.

        Args:
            info: ``learner_step``, ``learner_done``, metrics, and in ``priority_info`` tensors or None.

        Raises:
            LeaseLostError: If another learner has the task now.
            OSError: If the store has no space.
        """
        worker, priorities = self._connected(), info["priority_info"]
        handle = None if priorities is None else worker.channel.store.put("priority", priorities)
        worker.call("learner_learn_task", info={**info, "priority_info": handle})

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


FOLDER = "learner"
"""Folder of Lightning's files and checkpoints, inside the folder of the run."""
QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


class RemoteLearner:
    """A policy, its data and its Trainer, for one learning task.

    Args:
        task: Contents of the task.
        comm_learner: Source of the minibatches.
        callbacks: Callbacks that report to the coordinator.
        is_game: Whether the env is a game of several players, which the learner does not evaluate.

    Raises:
        ValueError: If the policy is on-policy, the config does not fit, or the folder holds checkpoints of another run.
    """

    def __init__(
        self, task: LearningTask, comm_learner: DataSource, callbacks: Sequence[Callback], is_game: bool = False
    ) -> None:
        main, learner = task.main, task.learner
        on_policy = get_policy_cls(task.policy).on_policy
        require(not on_policy, "main.policy", "one that learns from replay in a distributed run", task.policy["type"])
        require(not (is_game and learner.validate), "learner.validate", "false for a game", learner.validate)
        self.task = task
        self.folder = Path(main.exp_name) / FOLDER
        self.checkpoint = last_checkpoint(self.folder)
        if not task.resume and self.checkpoint is not None:
            raise ValueError(
                f"main.exp_name must be a new folder, got {main.exp_name}, which holds {self.checkpoint}: "
                "choose another folder, or resume that run"
            )
        if learner.num_threads is not None:
            torch.set_num_threads(learner.num_threads)
        seed_everything(main.seed, verbose=False)
        self.policy = create_policy(task.policy)
        self.datamodule = self._make_data(comm_learner, is_game)
        self.trainer = self._make_trainer(callbacks)

    def start(self) -> dict[str, float]:
        """Learn until the run is over, and evaluate the best checkpoint.

        Returns:
            Metrics of the best policy by name; empty if the learner does not evaluate.

        Raises:
            SystemExit: If a signal ended the run, after the checkpoint was written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trainer.fit(self.policy, self.datamodule, ckpt_path=self.checkpoint)
        self.train_iter = self.policy.progress.train_iter  # testing loads the progress of the best checkpoint
        if not self.task.learner.validate:
            return {}
        best = [one.best_model_path for one in self.trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint)]
        file = next((path for path in best if path), None)
        (scores,) = self.trainer.test(self.policy, self.datamodule, ckpt_path=file, verbose=False)
        return {name: float(value) for name, value in scores.items() if name.startswith("test/")}

    # ------------------------------------------------------------------ parts

    def _make_data(self, comm_learner: DataSource, is_game: bool) -> RemoteReplayDataModule:
        main, learner = self.task.main, self.task.learner
        env, validates = main.env, learner.validate
        env_id, kwargs, wrappers = env.evaluating
        return RemoteReplayDataModule(
            comm_learner,
            "CartPole-v1" if is_game else env_id,  # unused in a game, which only needs the spaces
            evaluator_env_num=env.evaluator_env_num if validates else None,
            n_evaluator_episode=env.n_evaluator_episode if validates else None,
            seed=main.seed,
            max_env_step=main.max_env_step,
            max_train_iter=main.max_train_iter,
            stop_value=env.stop_value if validates else None,
            rounds_per_epoch=learner.rounds_per_epoch,
            env_kwargs=kwargs,
            mode=env.mode,
            prefetch=learner.prefetch,
            norm_obs=main.norm_obs,
            validate=validates,
            spaces=_spaces_of_game(env) if is_game else None,
            wrappers=() if is_game else wrappers,
            import_names=env.import_names,
        )

    def _make_trainer(self, callbacks: Sequence[Callback]) -> Trainer:
        """Return the Trainer of the config; by default it runs until the coordinator ends the run."""
        learner, asked = self.task.learner, dict(self.task.learner.trainer)
        defaults = {**QUIET, "max_epochs": -1, "default_root_dir": self.folder}
        defaults |= {"strategy": "ddp"} if learner.multi_gpu else {"devices": 1}
        if "logger" not in asked:
            defaults["logger"] = TensorBoardLogger(self.folder.parent, name=FOLDER, version="")
        if not learner.validate:
            asked["limit_val_batches"] = 0
        trainer = Trainer(**{**defaults, **asked}, callbacks=list(callbacks))
        one_rank = trainer.world_size == 1
        require(learner.multi_gpu or one_rank, "learner.multi_gpu", "true for several devices", learner.multi_gpu)
        return trainer


def _spaces_of_game(env: EnvConfig) -> Spaces:
    """Return the observation space and the action space of one player of a game."""
    envs = PettingZooVectorEnv(find_game(env))
    envs.close()
    return envs.single_observation_space, envs.single_action_space
