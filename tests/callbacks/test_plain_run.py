"""Warnings, messages and logged arguments of a run with default settings."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

from lightning_ding.callbacks import StopAtEnvStep
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DQNPolicy, PPOPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]


def wrapper(env: Any) -> Any:
    return env


def data(**arguments: Any) -> ReplayDataModule:
    return ReplayDataModule(
        **{"env_id": partial(CountingEnv), "num_envs": 2, "rounds_per_epoch": 2, "max_env_step": 64, **arguments}
    )


def warned(trainer: Trainer, policy: Any, datamodule: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(policy, datamodule)
    return [str(one.message) for one in caught]


def test_plain_run_warns_of_nothing(small: Config, tmp_path: Path) -> None:
    assert warned(Trainer(accelerator="cpu", default_root_dir=tmp_path), DQNPolicy(small), data()) == []


class StopLater(Callback):
    """Stops the run early, without a limit that is known in advance."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("stops", [StopAtEnvStep(32), StopLater()], ids=["budget", "no budget"])
def test_default_number_of_epochs_is_said_where_there_is_no_budget(
    make_trainer: MakeTrainer, small: Config, stops: Callback
) -> None:
    texts = warned(make_trainer(callbacks=[stops]), DQNPolicy(small), data(max_env_step=None))
    assert any("`max_epochs` was not set" in text for text in texts) == isinstance(stops, StopLater)


def test_run_leaves_the_warnings_of_other_modules_alone(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    make_trainer().fit(DQNPolicy(small), data())
    logger = CSVLogger(tmp_path)
    texts = warned(make_trainer(logger=logger, max_epochs=1, limit_train_batches=2), BoringModel(), None)
    assert any("smaller than the logging interval" in text for text in texts)


@pytest.mark.parametrize("epochs", [1000, 3])
def test_epochs_that_the_user_sets_are_kept(make_trainer: MakeTrainer, small: Config, epochs: int) -> None:
    trainer = make_trainer(max_epochs=epochs)
    trainer.fit(DQNPolicy(small), data())
    assert trainer.max_epochs == epochs


@pytest.mark.parametrize("budget", [100, 400, 1000])
def test_warm_up_keeps_to_the_budget(make_trainer: MakeTrainer, small: Config, budget: int) -> None:
    policy = DQNPolicy({**small, "random_collect_size": 1000})
    make_trainer(limit_val_batches=0).fit(policy, data(max_env_step=budget))
    assert policy.progress.env_step == budget
    assert policy.progress.train_iter > 0


def test_warm_up_keeps_to_the_budget_of_a_callback(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy({**small, "random_collect_size": 1000})
    make_trainer(limit_val_batches=0, callbacks=[StopAtEnvStep(200)]).fit(policy, data(max_env_step=None))
    assert policy.progress.env_step == 200


def hparams(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("hparams.yaml")
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


def test_loggers_get_the_arguments_of_the_datamodule(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    datamodule = data(seed=3, wrappers=[wrapper], env_kwargs={"lengths": (3,)})
    make_trainer(logger=CSVLogger(tmp_path), enable_checkpointing=True).fit(DQNPolicy(small), datamodule)
    found = hparams(tmp_path)
    assert found["cfg"]["random_collect_size"] == 16
    assert (found["env_id"], found["seed"], found["num_envs"]) == ("tests.toys.envs.CountingEnv", 3, 2)
    assert (found["wrappers"], found["env_kwargs"]) == ([f"{__name__}.wrapper"], {"lengths": [3]})
    torch.load(next(tmp_path.rglob("best.ckpt")), weights_only=True)


def test_arguments_of_policy_and_datamodule_do_not_conflict(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    class Seeded(DQNPolicy):
        def __init__(self, cfg: Any, seed: int) -> None:
            super().__init__(cfg)
            self.save_hyperparameters({"seed": seed})

    make_trainer(logger=CSVLogger(tmp_path)).fit(Seeded(small, 7), data(seed=3))
    found = hparams(tmp_path)
    assert (found["seed"], found["data/seed"]) == (7, 3)


def test_rollouts_have_their_arguments_logged_as_well(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    config = {"collect": {"n_sample": 8}, "learn": {"batch_size": 4, "epoch_per_collect": 1}}
    datamodule = RolloutDataModule("CartPole-v1", num_envs=2, max_env_step=16, n_evaluator_episode=1)
    make_trainer(logger=CSVLogger(tmp_path)).fit(PPOPolicy(config), datamodule)
    assert hparams(tmp_path)["env_id"] == "CartPole-v1"
