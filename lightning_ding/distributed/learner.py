"""A learning task: a policy that learns, in a Trainer, from what others collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.callbacks import BestCheckpoint
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import require, resolve
from lightning_ding.datamodules.remote import DataSource, RemoteReplayDataModule, Spaces
from lightning_ding.distributed.collector.marine import find_game
from lightning_ding.distributed.config import EnvConfig, LearnerConfig, MainConfig
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.policy import create_policy, get_policy_cls

FOLDER = "learner"
"""In the folder of the run: Lightning's root, with the checkpoints."""
QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


@dataclass(frozen=True)
class LearningTask:
    """What the coordinator says of a learning task."""

    policy: Mapping[str, Any]
    """``type`` and the policy's config."""
    main: MainConfig
    learner: LearnerConfig
    resume: bool = False
    """Whether the task was begun before: go on from its newest checkpoint, if there is one."""

    @classmethod
    def read(cls, task_info: Mapping[str, Any]) -> LearningTask:
        """Return it from a ``task_info``.

        Raises:
            ValueError: If a key is unknown or a value out of its range.
        """
        main = resolve(MainConfig, task_info["main"])
        learner = resolve(LearnerConfig, task_info["learner_cfg"])
        return cls(task_info["policy"], main, learner, bool(task_info.get("resume", False)))


class RemoteLearner:
    """A policy, its data and its Trainer, for one learning task.

    Args:
        task: What is to be done.
        comm_learner: Where data come from.
        callbacks: Those that tell the coordinator how it goes.
        is_game: Whether the env is a game of several players, which is not evaluated here.

    Raises:
        ValueError: If the policy learns from rollouts, the config does not fit, or there are checkpoints of another run
            in the folder.
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
                f"main.exp_name must be a new folder, got {main.exp_name}, where a learner has left {self.checkpoint}: "
                "take another one, or resume that run"
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
            What the evaluation of the best policy gave, by metric; nothing if the learner does not evaluate.

        Raises:
            SystemExit: If a signal ended it; the checkpoint is written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trainer.fit(self.policy, self.datamodule, ckpt_path=self.checkpoint)
        self.learner_step = self.policy.progress.train_iter
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
            "CartPole-v1" if is_game else env_id,  # of a game only the spaces are needed
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
        """Return the Trainer that the config describes; by default it runs until the coordinator ends the run."""
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
    """Return the spaces of one player of a game."""
    envs = PettingZooVectorEnv(find_game(env))
    envs.close()
    return envs.single_observation_space, envs.single_action_space
