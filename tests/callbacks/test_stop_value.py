from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from lightning import Trainer

from lightning_ding.callbacks import StopAtReturn
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs.toy import CountingEnv
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]
Config = dict[str, Any]
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
