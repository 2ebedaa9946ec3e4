"""What the loggers of Lightning contain after a run, read back from their files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

CFG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1, "eval_freq": 4}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of 64 env steps with two loggers."""
    folder = tmp_path_factory.mktemp("loggers")
    loggers = [CSVLogger(folder, "csv", ""), TensorBoardLogger(folder, "tensorboard", "")]
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", logger=loggers, log_every_n_steps=1, **flags)
    trainer.fit(DQNPolicy(CFG), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=64))
    return folder


@pytest.fixture(scope="module")
def tensorboard(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_csv_file_has_metrics_over_env_steps(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "csv" / "metrics.csv").open()))
    returns = {int(row["step"]): float(row["eval/return_mean"]) for row in rows if row["eval/return_mean"]}
    assert max(returns) == 64
    assert all(step % 8 == 0 and value > 0 for step, value in returns.items())
    assert {int(row["step"]) for row in rows if row["learn/total_loss"]} == {24, 32, 40, 48, 56, 64}


def test_tensorboard_has_metrics_over_env_steps(tensorboard: EventAccumulator) -> None:
    assert [event.step for event in tensorboard.Scalars("learn/total_loss")] == [24, 32, 40, 48, 56, 64]
    assert tensorboard.Scalars("eval/return_mean")[-1].step == 64


def test_returns_sort_before_the_metrics_of_learning(tensorboard: EventAccumulator) -> None:
    groups = sorted({tag.partition("/")[0] for tag in tensorboard.Tags()["scalars"] if "/" in tag})
    assert groups.index("eval") < groups.index("learn") < groups.index("time")
    assert groups.index("collect") < groups.index("learn")


@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_hyper_parameters_of_policy_and_data_are_written(folder: Path, logger: str) -> None:
    found = yaml.unsafe_load((folder / logger / "hparams.yaml").read_text())
    assert found["cfg"]["learn"]["batch_size"] == 8
    assert found["env_id"] == "CartPole-v1"
    assert found["max_env_step"] == 64
