"""A run that does not learn says what it can, in one line for each symptom."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_ding.callbacks import MetricsLogger
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.entry.cli import main
from lightning_ding.entry.doctor import doctor
from lightning_ding.registry import POLICY_REGISTRY
from tests.conftest import MakeTrainer

Config = dict[str, Any]
SHORT: Config = {"eval": {"evaluator": {"n_episode": 2}}}
PPO: Config = {"collect": {"n_sample": 256}, "learn": {"epoch_per_collect": 2}}
DQN: Config = {"random_collect_size": 64, "collect": {"n_sample": 32}, "learn": {"batch_size": 32}}
SMALL = [{"scale_reward": {"scale": 1e-4}}]


class Blind(gym.ObservationWrapper[Any, Any, Any]):
    """An env whose observation is always the same."""

    def observation(self, observation: Any) -> Any:
        return np.zeros_like(observation)


def train(make_trainer: MakeTrainer, kind: str, config: Config, steps: int = 1024, **arguments: Any) -> Trainer:
    seed_everything(0, verbose=False)
    policy = POLICY_REGISTRY.get(kind)(deep_merge(SHORT, config))
    datamodule_class = RolloutDataModule if policy.on_policy else ReplayDataModule
    moved = ("logger", "callbacks", "enable_checkpointing")
    own: Config = {name: arguments.pop(name) for name in moved if name in arguments}
    given: Config = {"num_envs": 4, "max_env_step": steps, **arguments}
    datamodule = datamodule_class("CartPole-v1", **given)
    options: Config = {"limit_val_batches": 0, "log_every_n_steps": 1, **own}
    trainer = make_trainer(**options)
    trainer.fit(policy, datamodule)
    return trainer


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the symptoms that were logged, in order."""
    lines = [one.getMessage() for one in caplog.records if one.name == "lightning_ding.callbacks.metrics"]
    return [line.partition(":")[0] for line in lines]


RANDOM: Config = {"collect": {"n_sample": 1024}, "learn": {"entropy_weight": 1.0, "batch_size": 128}}
BAD: dict[str, tuple[str, Config, dict[str, Any], str]] = {
    "learning rate 1.0, ppo": ("ppo", {"learn": {"learning_rate": 1.0}}, {}, "large_steps"),
    "learning rate 1.0, dqn": ("dqn", {"learn": {"learning_rate": 1.0}}, {}, "large_steps"),
    "constant observation, ppo": ("ppo", {}, {"wrappers": [Blind]}, "constant_observations"),
    "constant observation, dqn": ("dqn", {}, {"wrappers": [Blind]}, "constant_observations"),
    "reward scale 1e-4, ppo": ("ppo", {}, {"wrappers": SMALL}, "rewards_too_small"),
    "reward scale 1e-4, dqn": ("dqn", {}, {"wrappers": SMALL}, "rewards_too_small"),
    "entropy weight 1.0, ppo": ("ppo", RANDOM, {"steps": 12_288}, "random_actor"),
    "gamma 0.5, ppo": ("ppo", {"discount_factor": 0.5}, {}, "short_horizon"),
    "gamma 0.5, dqn": ("dqn", {"discount_factor": 0.5}, {}, "short_horizon"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_is_named_once(
    name: str, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    kind, change, arguments, symptom = BAD[name]
    with caplog.at_level(logging.WARNING):
        train(make_trainer, kind, deep_merge(PPO if kind == "ppo" else DQN, change), **arguments)
    assert said(caplog).count(symptom) == 1


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_an_ordinary_run_has_no_symptom(kind: str, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(make_trainer, kind, PPO if kind == "ppo" else DQN)
    assert said(caplog) == []


def test_lines_can_be_turned_off(make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(make_trainer, "ppo", {**PPO, "discount_factor": 0.5}, callbacks=[MetricsLogger(symptoms=False)])
    assert said(caplog) == []


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a bad run that logged to CSV files and to TensorBoard, with checkpoints."""
    folder = tmp_path_factory.mktemp("logs")
    loggers = [CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="events")]

    def make(**flags: Any) -> Trainer:
        quiet: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        return Trainer(**{**quiet, **flags})

    train(make, "ppo", {**PPO, "discount_factor": 0.5}, logger=loggers, enable_checkpointing=True)
    return folder


def names(found: dict[str, Any]) -> list[str]:
    return [one["name"] for one in found["symptoms"]]


def test_doctor_finds_the_symptom_in_csv_files_in_events_and_in_a_checkpoint(logs: Path) -> None:
    in_csv, in_events = doctor(logs / "csv"), doctor(logs / "events")
    checkpoint = next(logs.rglob("last.ckpt"))
    in_checkpoint = doctor(checkpoint)
    assert names(in_csv) == names(in_events) == names(in_checkpoint) == ["short_horizon"]
    assert in_csv["symptoms"][0]["page"] == "docs/guides/not_learning.md#short-horizon"
    shared = in_csv["metrics"].keys() & in_events["metrics"].keys()
    assert {"learn/explained_variance", "learn/grad_norm", "collect/length_mean"} <= shared
    assert all(in_events["metrics"][key] == pytest.approx(in_csv["metrics"][key], rel=1e-5) for key in shared)
    assert in_checkpoint["metrics"]["learn/grad_norm"] == pytest.approx(in_csv["metrics"]["learn/grad_norm"])
    assert doctor(logs)["has_config"]


def test_doctor_prints_text_and_json(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(logs / "csv")])
    text = capsys.readouterr().out
    assert "short_horizon: the discount factor 0.5 looks 2.0 steps ahead" in text
    assert "learn/explained_variance" in text
    assert "usual: " in text
    main(["doctor", str(logs / "csv"), "--json"])
    assert names(json.loads(capsys.readouterr().out)) == ["short_horizon"]


def test_doctor_leaves_out_the_last_row_that_a_killed_run_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,learn/obs_changing\n8,0.5\n16,0.25\n24,-")
    found = doctor(tmp_path)
    assert (found["rows"], found["metrics"]) == (2, {"step": 16, "learn/obs_changing": 0.25})
    file.write_text("step,learn/obs_changing\n8,0.5\n16,0.25,7\n24,0.5\n")
    with pytest.raises(ValueError, match=r"row 2 of '.*metrics\.csv' cannot be read"):
        doctor(tmp_path)


def test_doctor_says_that_a_config_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.csv").write_text("step,learn/obs_changing,learn/dead_units\n8,0.0,\n16,0.0,0.5\n")
    main(["doctor", str(tmp_path)])
    text = capsys.readouterr().out
    assert "the config of the run was not found" in text
    assert "constant_observations" in text
    assert "2 rows" in text


@pytest.mark.parametrize("given", ["nowhere", "."])
def test_doctor_refuses_a_folder_without_metrics(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", given])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: run must be ")


def test_a_run_with_a_reward_model_is_measured_without_its_rewards(make_trainer: MakeTrainer) -> None:
    config = {**DQN, "nstep": 1, "reward_model": {"type": "rnd"}}
    metrics = train(make_trainer, "dqn", config, steps=256).callback_metrics
    assert float(metrics["learn/obs_changing"]) == 1
    assert "learn/reward_mean" not in metrics


def test_a_resumed_run_does_not_repeat_a_symptom(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    config = {**PPO, "discount_factor": 0.5}
    first = train(make_trainer, "ppo", config, enable_checkpointing=True)
    (path,) = {
        str(vars(one)["last_model_path"]) for one in first.checkpoint_callbacks if "last_model_path" in vars(one)
    }
    policy = POLICY_REGISTRY.get("ppo")(config)
    again = make_trainer(limit_val_batches=0, log_every_n_steps=1)
    assert said(caplog) == ["short_horizon"]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again.fit(policy, RolloutDataModule("CartPole-v1", num_envs=4, max_env_step=2048), ckpt_path=path)
    assert policy.progress.env_step == 2048
    assert said(caplog) == []
