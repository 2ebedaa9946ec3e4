from __future__ import annotations

from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import EvaluationInterval
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PGPolicy
from tests.conftest import MakeTrainer


class Witness(Callback):
    """Notes the updates before each round's end and before each evaluation."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.evaluations: list[int] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self.rounds.append(pl_module.progress.train_iter)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.evaluations.append(pl_module.progress.train_iter)


def policy() -> PGPolicy:
    return PGPolicy({"learn": {"batch_size": 8}, "collect": {"n_episode": 2}, "eval": {"evaluator": {"n_episode": 1}}})


def data(max_train_iter: int) -> RolloutDataModule:
    return RolloutDataModule("CartPole-v1", num_envs=2, max_train_iter=max_train_iter, rounds_per_epoch=1)


def expected(rounds: list[int], interval: int) -> list[int]:
    """Return the updates before each evaluation: a slow oracle."""
    found, last = [], 0
    for number, updates in enumerate(rounds):
        if updates - last >= interval or number == len(rounds) - 1:
            found.append(updates)
            last = updates
    return found


def test_evaluations_take_place_after_the_round_that_completes_the_interval(make_trainer: MakeTrainer) -> None:
    witness = Witness()
    trainer = make_trainer(callbacks=[EvaluationInterval(20), witness])
    trainer.fit(policy(), data(90))
    assert len(witness.rounds) >= 10
    assert witness.evaluations == expected(witness.rounds, 20)
    assert len(witness.evaluations) < len(witness.rounds)
    assert trainer.check_val_every_n_epoch == 1


def test_every_round_is_evaluated_with_an_interval_of_one(make_trainer: MakeTrainer) -> None:
    witness = Witness()
    make_trainer(callbacks=[EvaluationInterval(1), witness]).fit(policy(), data(20))
    assert witness.evaluations == witness.rounds


def test_interval_continues_after_a_checkpoint() -> None:
    interval = EvaluationInterval(5)
    interval.load_state_dict({"evaluated": 12})
    assert interval.state_dict() == {"evaluated": 12}


def test_trainer_evaluates_as_usual_after_an_error(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.check_val_every_n_epoch = 77
    EvaluationInterval(5).on_exception(trainer, None, RuntimeError())
    assert trainer.check_val_every_n_epoch == 1


def test_interval_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="train_iter must be >= 1, got 0"):
        EvaluationInterval(0)
