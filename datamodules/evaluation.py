"""Evaluations of a policy during a run, with the episodes distributed over the ranks.

Shapes: E episodes of an evaluation over all ranks.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import Trainer

from lightning_ding.config import require
from lightning_ding.datamodules.rng import Seeds
from lightning_ding.utils.ranks import sum_over_ranks
from lightning_ding.worker import InteractionSerialEvaluator, create_serial_evaluator, get_serial_evaluator_cls
from lightning_ding.worker.evaluator.drawing import choose_mujoco_gl
from lightning_ding.worker.evaluator.rendering import LoggerMedia

Stage = Literal["validate", "test"]


class Evaluation:
    """Runs this rank's share of the episodes of each evaluation of a policy.

    Args:
        trainer: The Trainer.
        policy: The policy to evaluate.
        n_episode: Number of episodes over all ranks, at least one for each rank; None means the policy's
            ``eval.evaluator.n_episode``.

    Raises:
        ValueError: If there are fewer episodes than ranks, or the evaluator cannot distribute its episodes over ranks.
    """

    def __init__(self, trainer: Trainer, policy: Any, n_episode: int | None) -> None:
        self.config = policy.config.eval.evaluator
        self.n_episode: int = n_episode or self.config.n_episode
        ranks = trainer.world_size
        require(self.n_episode >= ranks, "n_episode", f"at least one for each of {ranks} ranks", self.n_episode)
        self.episodes = range(self.n_episode)[trainer.global_rank :: ranks]
        """Numbers of the episodes that this rank runs."""
        is_known = issubclass(get_serial_evaluator_cls(self.config), InteractionSerialEvaluator)
        allowed = "that of an InteractionSerialEvaluator, such as 'interaction' (the callback RunEvaluator runs others)"
        require(is_known, "eval.evaluator.type", allowed, self.config.type)
        if self.config.render.render_freq > 0:
            choose_mujoco_gl()  # before the envs are made, in this process or in others
        self._trainer = trainer
        self._policy = policy

    def make_evaluator(self, env: VectorEnv, seed: int, stage: Stage) -> InteractionSerialEvaluator:
        """Make the evaluator from the vector env and the seed of the run. The policy must have the env's spaces."""
        loggers = self._trainer.loggers
        self.evaluator: InteractionSerialEvaluator = create_serial_evaluator(  # type: ignore[assignment]
            self.config,
            env=env,
            policy=self._policy.eval_mode,
            tb_logger=LoggerMedia(loggers) if loggers else None,
            seed=Seeds(seed).evaluation(stage),
            instance_name="test" if stage == "test" else "eval",
        )
        if self.config.render.render_freq > 0:
            self.evaluator.check_can_render()
        return self.evaluator

    def run(self) -> dict[str, Any]:
        """Return the results of this rank's episodes, shape (E,) each, zero for the episodes of other ranks.

        They are ``episode_return``, ``episode_length`` and ``infos``: numbers of the infos by name, ``success_rate``
        and those of ``info_keys``, NaN where the env gives none.
        """
        evaluator, progress = self.evaluator, self._policy.progress
        now = {"envstep": progress.env_step, "train_iter": progress.train_iter}
        renders = evaluator.should_render(**now)
        number = 0 if self._trainer.testing else progress.train_iter
        results = evaluator.run(self.episodes, video=renders and self._trainer.is_global_zero, number=number)
        infos = evaluator.infos_of(self.episodes)
        table = torch.zeros(2 + len(infos), self.n_episode)
        table[:, self.episodes] = torch.tensor([*results, *infos.values()])
        if renders:
            evaluator.write_video(**now)
        if evaluator.config.figure_path is not None:
            evaluator.write_figure(sum_over_ranks(table[0]).tolist(), **now)
        by_name = dict(zip(infos, table[2:], strict=True))
        return {"episode_return": table[0], "episode_length": table[1], "infos": by_name}
