"""The learner of a learning task: a policy, a Trainer, and the rounds of minibatches that a comm learner fetches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import LightningEnvironment  # type: ignore[attr-defined]
from typing_extensions import override

from lightning_ding.callbacks import BestCheckpoint
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import require
from lightning_ding.datamodules.remote import DataSource, RemoteReplayDataModule, Spaces
from lightning_ding.distributed.collector.marine import find_game
from lightning_ding.distributed.config import EnvConfig, LearningTask
from lightning_ding.distributed.coordinator.settings import check_policy
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.envs.named import find_callable
from lightning_ding.policy import create_policy
from lightning_ding.worker import BaseLearner, LearnerHook

FOLDER = "learner"
"""Folder of Lightning's files and checkpoints, inside the folder of the run."""
QUIET = {"enable_progress_bar": False, "enable_model_summary": False}
NO_HOOKS = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


class RemoteLearner(BaseLearner):
    """A policy, its data and its Trainer, for one learning task.

    Args:
        task: Contents of the task.
        comm_learner: Source of the minibatches.
        callbacks: Callbacks that report to the coordinator; a ``LearnerHook`` sees this learner as its engine.
        is_game: Whether the env is a game of several players, which the learner does not evaluate.

    Raises:
        ValueError: If a distributed run cannot train the policy, the config does not fit, or the folder holds
            checkpoints of another run.
    """

    def __init__(
        self, task: LearningTask, comm_learner: DataSource, callbacks: Sequence[Callback], is_game: bool = False
    ) -> None:
        main, learner = task.main, task.learner
        check_policy(task.policy, main.demonstrations)
        require(not (is_game and learner.validate), "learner.validate", "false for a game", learner.validate)
        keys = main.env.info_keys
        require(not (is_game and keys), "main.env.info_keys", "empty for a game", keys)
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
        policy = create_policy(task.policy)
        super().__init__({"hook": NO_HOOKS, "log_policy": False}, policy, exp_name=main.exp_name)
        self.module = policy
        self.results: dict[str, float] = {}
        """Metrics of the best policy by name, after :meth:`start`; empty if the learner does not evaluate."""
        self._learned: int | None = None  # updates at the end; testing loads the progress of the best checkpoint
        self.datamodule = self._make_data(comm_learner, is_game)
        self.trainer = self._make_task_trainer(callbacks)
        for hook in callbacks:
            if isinstance(hook, LearnerHook):
                hook.engine = self

    @property
    @override
    def train_iter(self) -> int:
        """Updates completed."""
        return super().train_iter if self._learned is None else self._learned

    @override
    def register_hook(self, hook: LearnerHook) -> None:
        super().register_hook(hook)
        hook.engine = self
        self.trainer.callbacks.append(hook)  # type: ignore[attr-defined]

    @override
    def start(self, **trainer_flags: Any) -> None:
        """Learn until the run is over, and evaluate the best checkpoint.

        Raises:
            SystemExit: If a signal ended the run, after the checkpoint was written.
            ValueError: If flags are given; the config of the run has them, in ``system.learner.trainer``.
        """
        require(not trainer_flags, "trainer_flags", "in system.learner.trainer of the run's config", trainer_flags)
        self.folder.mkdir(parents=True, exist_ok=True)
        assert self.module is not None
        self.trainer.fit(self.module, self.datamodule, ckpt_path=self.checkpoint)
        self._learned = super().train_iter
        if not self.task.learner.validate or self._is_closed:
            return
        best = [one.best_model_path for one in self.trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint)]
        file = next((path for path in best if path), None)
        (scores,) = self.trainer.test(self.module, self.datamodule, ckpt_path=file, verbose=False)
        self.results = {name: float(value) for name, value in scores.items() if name.startswith("test/")}

    @override
    def close(self) -> None:
        """End a running ``start`` before its next round, with a checkpoint; may be called from any thread."""
        super().close()
        self.datamodule.request_cancel(True)

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
            info_keys=env.info_keys,
            monitor=main.monitor,
            eval_every=learner.eval_every,
            checkpoint_every=learner.checkpoint_every,
            env_kwargs=kwargs,
            mode=env.mode,
            prefetch=learner.prefetch,
            norm_obs=main.norm_obs,
            norm_reward=main.norm_reward,
            demonstrations=main.demonstrations,
            demonstration_share=main.demonstration_share,
            imitation_reward=main.imitation_reward,
            validate=validates,
            spaces=_spaces_of_game(env) if is_game else None,
            wrappers=() if is_game else wrappers,
            import_names=env.import_names,
        )

    def _make_task_trainer(self, callbacks: Sequence[Callback]) -> Trainer:
        """Return the Trainer of the config; by default it runs until the coordinator ends the run."""
        learner, asked = self.task.learner, dict(self.task.learner.trainer)
        defaults = {**QUIET, "max_epochs": -1, "default_root_dir": self.folder}
        alone = {"devices": 1, "plugins": [LightningEnvironment()]}  # not Slurm's, which describes the whole job
        defaults |= {"strategy": "ddp"} if learner.multi_gpu else alone
        if "logger" not in asked:
            defaults["logger"] = TensorBoardLogger(self.folder.parent, name=FOLDER, version="")
        if not learner.validate:
            asked["limit_val_batches"] = 0
        own = [_make_callback(one) for one in asked.pop("callbacks", ())]
        trainer = Trainer(**{**defaults, **asked}, callbacks=[*own, *callbacks])
        one_rank = trainer.world_size == 1
        require(learner.multi_gpu or one_rank, "learner.multi_gpu", "true for several devices", learner.multi_gpu)
        return trainer


def _make_callback(given: Any) -> Callback:
    """Return the callback of a dotted path, or of a mapping with ``class_path`` and ``init_args``."""
    made = find_callable(given, "system.learner.trainer.callbacks")()
    if not isinstance(made, Callback):
        raise TypeError(f"system.learner.trainer.callbacks must be callbacks, got {type(made).__name__} of {given!r}")
    return made


def _spaces_of_game(env: EnvConfig) -> Spaces:
    """Return the observation space and the action space of one player of a game."""
    envs = PettingZooVectorEnv(find_game(env))
    envs.close()
    return envs.single_observation_space, envs.single_action_space
