from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]


class AtStart(Callback):
    """Notes at which env step a run starts."""

    env_step = -1

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.env_step = pl_module.progress.env_step


def fit(trainer: Trainer, small: Config, max_env_step: int, **arguments: Any) -> int:
    """Train, and return the env step it started at."""
    start = AtStart()
    trainer.callbacks.insert(0, start)  # type: ignore[attr-defined]
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2, max_env_step=max_env_step)
    trainer.fit(DQNPolicy(small), datamodule, **arguments)
    return start.env_step


@pytest.mark.parametrize("in_a_folder", [True, False], ids=["dirpath", "default root"])
def test_last_is_where_an_earlier_run_with_the_callback_ended(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, in_a_folder: bool
) -> None:
    def trainer() -> Trainer:
        callback = RunCheckpoint(tmp_path / "here" if in_a_folder else None)
        return make_trainer(enable_checkpointing=True, callbacks=[callback])

    assert fit(trainer(), small, 64) == 0
    assert fit(trainer(), small, 96, ckpt_path="last") == 64


def test_last_is_found_in_the_newest_version_of_the_logger(small: Config, tmp_path: Path) -> None:
    def trainer() -> Trainer:
        return Trainer(accelerator="cpu", default_root_dir=tmp_path, callbacks=[RunCheckpoint()], logger=True)

    starts = [fit(trainer(), small, 48), fit(trainer(), small, 64, ckpt_path="last")]
    starts.append(fit(trainer(), small, 96, ckpt_path="last"))
    assert starts == [0, 48, 64]


def test_last_passes_over_a_torn_checkpoint(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def trainer() -> Trainer:
        return make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path / "here", keep_last=2)])

    fit(trainer(), small, 64)
    shutil.rmtree(tmp_path / "here" / "last-64" / "rank_0")
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        assert fit(trainer(), small, 96, ckpt_path="last") == 48
    assert "last-64/rank_0" in caplog.text


def test_last_without_a_checkpoint_is_an_error_and_no_run_from_scratch(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path / "here")])
    with pytest.raises(ValueError, match=r'ckpt_path="last" needs a complete checkpoint.*here'):
        fit(trainer, small, 64, ckpt_path="last")


def test_last_of_a_trainer_with_default_callbacks_is_where_the_earlier_run_ended(small: Config, tmp_path: Path) -> None:
    def trainer() -> Trainer:
        return Trainer(accelerator="cpu", default_root_dir=tmp_path)

    with pytest.raises(ValueError, match='ckpt_path="last" needs a complete checkpoint'):
        fit(trainer(), small, 64, ckpt_path="last")
    assert fit(trainer(), small, 64) == 0
    second = trainer()
    assert fit(second, small, 96, ckpt_path="last") == 64
    assert [type(callback) for callback in second.checkpoint_callbacks] == [BestCheckpoint, RunCheckpoint]


@pytest.mark.parametrize(("save_last", "name"), [(None, "last.ckpt"), (True, "run.ckpt")])
def test_last_of_a_run_with_a_checkpoint_callback_of_the_user_is_where_it_ended(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, save_last: bool | None, name: str
) -> None:
    def trainer() -> Trainer:
        own = ModelCheckpoint(monitor="eval/return_mean", mode="max", save_last=save_last)
        return make_trainer(enable_checkpointing=True, callbacks=[own])

    assert fit(trainer(), small, 64) == 0
    assert (tmp_path / "checkpoints" / name).is_file()
    assert fit(trainer(), small, 96, ckpt_path="last") == 64


def test_nothing_of_lightnings_own_saving_is_left() -> None:
    hooks = {name for name in vars(ModelCheckpoint) if hasattr(Callback, name) and not name.startswith("__")}
    assert {"setup", "on_train_epoch_end", "on_exception", "state_dict"} <= hooks
    left = {name for name in hooks if getattr(RunCheckpoint, name) is getattr(ModelCheckpoint, name)}
    assert left == set()
    assert RunCheckpoint().state_key == "RunCheckpoint"
