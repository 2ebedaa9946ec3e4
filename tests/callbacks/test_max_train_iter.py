from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import StopAtTrainIter
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]
Config = dict[str, Any]


class Evaluations(Callback):
    """Notes at which update each evaluation is."""

    def __init__(self) -> None:
        self.train_iters: list[int] = []

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.train_iters.append(pl_module.progress.train_iter)


@pytest.mark.parametrize(("asked", "reached"), [(6, 6), (7, 8)])
def test_run_stops_at_the_end_of_the_round_that_reaches_the_updates(
    make_trainer: MakeTrainer, small: Config, asked: int, reached: int
) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtTrainIter(asked)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2))
    assert policy.progress.train_iter == trainer.global_step == reached


def test_last_weights_are_evaluated_however_rarely_the_run_evaluates(make_trainer: MakeTrainer, small: Config) -> None:
    evaluations = Evaluations()
    trainer = make_trainer(callbacks=[evaluations, StopAtTrainIter(12)], check_val_every_n_epoch=50)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=4))
    assert evaluations.train_iters == [12]


def test_run_beyond_a_thousand_epochs_is_not_cut(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy({**small, "collect": {"n_sample": 1}, "learn": {"update_per_collect": 1, "batch_size": 2}})
    trainer = make_trainer(callbacks=[StopAtTrainIter(1010)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=1, rounds_per_epoch=1))
    assert policy.progress.train_iter == 1010


def test_run_of_no_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="max_train_iter must be >= 1, got 0"):
        StopAtTrainIter(0)
