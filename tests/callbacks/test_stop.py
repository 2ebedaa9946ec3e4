from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import Limits, StopAtEnvStep, StopAtReturn, StopAtTrainIter
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]


class Evaluations(Callback):
    """Record the env step and the update of each evaluation."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.found.append((pl_module.progress.env_step, pl_module.progress.train_iter))


@pytest.mark.parametrize(("asked", "reached"), [(64, 64), (65, 72)])
def test_run_stops_at_the_end_of_the_round_that_reaches_the_env_steps(
    make_trainer: MakeTrainer, small: Config, asked: int, reached: int
) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtEnvStep(asked)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2))
    # 16 random steps, then rounds of 8 with 2 updates each
    assert (policy.progress.env_step, policy.progress.train_iter) == (reached, (reached - 16) // 4)


@pytest.mark.parametrize("stop", [StopAtEnvStep(64), StopAtTrainIter(12)], ids=["max_env_step", "max_train_iter"])
def test_last_weights_are_evaluated_however_rarely_the_run_evaluates(
    make_trainer: MakeTrainer, small: Config, stop: Callback
) -> None:
    evaluations = Evaluations()
    trainer = make_trainer(callbacks=[evaluations, stop], check_val_every_n_epoch=50)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=4))
    assert evaluations.found == [(64, 12)]  # 16 random steps, then 6 rounds of 8 with 2 updates each


def test_users_own_budget_goes_before_that_of_the_datamodule(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtEnvStep(64)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40))
    assert policy.progress.env_step == 64


@pytest.mark.parametrize(("asked", "reached"), [(6, 6), (7, 8)])
def test_run_stops_at_the_end_of_the_round_that_reaches_the_updates(
    make_trainer: MakeTrainer, small: Config, asked: int, reached: int
) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtTrainIter(asked)], limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2))
    assert policy.progress.train_iter == trainer.global_step == reached


def test_run_with_a_limit_has_no_limit_of_epochs(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer(callbacks=[StopAtTrainIter(1)], limit_val_batches=0)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=1, rounds_per_epoch=1))
    assert trainer.max_epochs == -1  # a run beyond Lightning's thousand is in tests/datamodules/test_replay.py


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="max_env_step must be >= 1, got 0"):
        StopAtEnvStep(0)
    with pytest.raises(ValueError, match="max_train_iter must be >= 1, got 0"):
        StopAtTrainIter(0)


ENV = partial(CountingEnv, lengths=(4,))  # every episode returns 1 + 2 + 3 + 4 = 10


@pytest.mark.parametrize(("stop_value", "epochs"), [(9.5, 1), (10.0, 1), (10.5, 3), (-1.0, 1)])
def test_run_stops_when_an_evaluation_reaches_the_return(
    make_trainer: MakeTrainer, small: Config, stop_value: float, epochs: int
) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtReturn(stop_value)], max_epochs=3)
    trainer.fit(policy, ReplayDataModule(ENV, num_envs=2, rounds_per_epoch=2))
    assert policy.progress.train_iter == epochs * 4  # 2 rounds of 2 updates


def test_run_is_evaluated_once_for_the_return_that_stops_it(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(callbacks=[StopAtReturn(10)], check_val_every_n_epoch=2)
    trainer.fit(policy, ReplayDataModule(ENV, num_envs=2, rounds_per_epoch=2))
    assert policy.progress.train_iter == 2 * 4  # nothing is known before the second epoch ends


def test_policy_that_has_not_learned_yet_does_not_stop_the_run(make_trainer: MakeTrainer, small: Config) -> None:
    callback = StopAtReturn(10)
    policy, trainer = DQNPolicy(small), make_trainer(callbacks=[callback])
    trainer.validate(policy, ReplayDataModule(ENV, num_envs=2), verbose=False)
    assert trainer.callback_metrics["eval/return_mean"] == 10
    assert not trainer.should_stop
    policy.progress.train_iter = 1
    callback.on_validation_end(trainer, policy)
    assert trainer.should_stop


def test_limits_give_a_callback_for_each_limit_that_is_set() -> None:
    assert Limits().callbacks() == []
    assert [type(one) for one in Limits(8, 2, 0.0).callbacks()] == [StopAtEnvStep, StopAtTrainIter, StopAtReturn]


@pytest.mark.parametrize(
    ("limits", "callbacks", "max_epochs"),
    [
        (Limits(), [], None),
        (Limits(stop_value=0.0), [], -1),
        (Limits(), [StopAtTrainIter(2)], -1),
        (Limits(eval_every=10), [], -1),
    ],
)
def test_default_number_of_epochs_is_lifted_for_a_run_with_a_limit(
    make_trainer: MakeTrainer, limits: Limits, callbacks: list[Callback], max_epochs: int | None
) -> None:
    trainer = make_trainer(callbacks=callbacks)
    limits.lift_default_epochs(trainer)
    assert trainer.max_epochs == max_epochs


@pytest.mark.parametrize(
    ("limits", "flags", "is_said"),
    [
        (Limits(eval_every=10), {}, True),
        (Limits(max_env_step=100, eval_every=10), {}, False),
        (Limits(eval_every=10), {"max_time": "00:00:01:00"}, False),
        (Limits(eval_every=10), {"max_steps": 5}, False),
        (Limits(eval_every=10), {"max_epochs": -1}, False),  # the user asked for it
        (Limits(), {}, False),  # Lightning says it
    ],
)
def test_a_run_with_intervals_of_env_steps_that_nothing_ends_says_so_once(
    make_trainer: MakeTrainer,
    limits: Limits,
    flags: dict[str, Any],
    is_said: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = make_trainer(**flags)
    limits.lift_default_epochs(trainer)
    limits.lift_default_epochs(trainer)
    expected = ["no limit is set, so the run with eval_every=10 continues until it is stopped"] if is_said else []
    assert [text.partition(":")[0] for text in caplog.messages if "no limit" in text] == expected


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_an_evaluation_does_not_say_that_a_run_has_no_limit(
    make_trainer: MakeTrainer, stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer()
    trainer.state.fn = stage
    Limits(eval_every=10).lift_default_epochs(trainer)
    assert not caplog.messages
