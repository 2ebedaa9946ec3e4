from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import StopAtEnvStep
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]
Config = dict[str, Any]


class Evaluations(Callback):
    """Notes at which env step each evaluation is."""

    def __init__(self) -> None:
        self.env_steps: list[int] = []

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.env_steps.append(pl_module.progress.env_step)


@pytest.mark.parametrize(("asked", "reached"), [(64, 64), (65, 72)])
def test_run_stops_at_the_end_of_the_round_that_reaches_the_env_steps(
    make_trainer: MakeTrainer, small: Config, asked: int, reached: int
) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtEnvStep(asked)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2))
    # 16 random steps, then rounds of 8 with 2 updates each
    assert (policy.progress.env_step, policy.progress.train_iter) == (reached, (reached - 16) // 4)


def test_last_weights_are_evaluated_however_rarely_the_run_evaluates(make_trainer: MakeTrainer, small: Config) -> None:
    evaluations = Evaluations()
    trainer = make_trainer(callbacks=[evaluations, StopAtEnvStep(64)], check_val_every_n_epoch=50)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=4))
    assert evaluations.env_steps == [64]


def test_users_own_budget_goes_before_that_of_the_datamodule(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtEnvStep(64)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40))
    assert policy.progress.env_step == 64


def test_run_of_no_env_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="max_env_step must be >= 1, got 0"):
        StopAtEnvStep(0)
