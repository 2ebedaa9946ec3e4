from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lightning_ding.tune.trial_run import RunMaker, TrialReporter

SETTINGS: dict[str, Any] = {
    "policy": "dqn",
    "seed_everything": 1,
    "data": {"env_id": "CartPole-v1", "max_env_step": 100},
    "trainer": {"accelerator": "cpu"},
}


@pytest.fixture(scope="module")
def maker() -> RunMaker:
    return RunMaker(SETTINGS)


class FakeTrial:
    number = 7

    def __init__(self, is_bad: bool = False) -> None:
        self.is_bad, self.reported = is_bad, list[tuple[float, int]]()

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return self.is_bad


def evaluate(reporter: TrialReporter, position: int, value: float) -> SimpleNamespace:
    """Let a reporter see an evaluation in a run of 100 env steps, and return the Trainer."""
    trainer = SimpleNamespace(callback_metrics={"eval/return_mean": value}, should_stop=False, is_global_zero=True)
    policy = SimpleNamespace(progress=SimpleNamespace(position=position, budget=100))
    reporter.on_validation_end(trainer, policy)  # type: ignore[arg-type]
    return trainer


def test_reporter_reports_at_evenly_spaced_env_steps() -> None:
    trial: Any = FakeTrial()
    reporter = TrialReporter(trial, 4)
    for position, value in [(10, 1.0), (30, 2.0), (40, 3.0), (80, 4.0), (104, 5.0)]:
        evaluate(reporter, position, value)
    assert trial.reported == [(2.0, 25), (4.0, 75), (5.0, 100)]
    assert reporter.returns == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_reporter_stops_a_trial_that_is_not_worth_continuing() -> None:
    reporter = TrialReporter(FakeTrial(is_bad=True), 4)  # type: ignore[arg-type]
    assert not evaluate(reporter, 10, 1.0).should_stop
    assert evaluate(reporter, 30, 1.0).should_stop
    assert reporter.is_pruned


def test_reporter_does_not_prune_a_trial_at_its_end() -> None:
    reporter = TrialReporter(FakeTrial(is_bad=True), 4)  # type: ignore[arg-type]
    assert not evaluate(reporter, 100, 1.0).should_stop
    assert not reporter.is_pruned


def test_settings_of_a_trial_have_its_values_seed_and_folder(maker: RunMaker, tmp_path: Path) -> None:
    settings = maker.trial_settings({"learn.learning_rate": 0.1, "nstep": 2}, 5, tmp_path / "0001")
    assert settings["model"]["cfg"] == {"learn": {"learning_rate": 0.1}, "nstep": 2}
    assert (settings["seed_everything"], settings["data"]["seed"]) == (5, 5)
    assert settings["data"]["max_env_step"] == 100
    assert settings["trainer"]["default_root_dir"] == str(tmp_path / "0001")
    assert yaml.safe_load((tmp_path / "0001" / "trial.yaml").read_text()) == settings
    assert maker.settings == SETTINGS  # of the run as given


def test_trial_is_made_from_its_settings(maker: RunMaker, tmp_path: Path) -> None:
    settings = maker.trial_settings({"learn.learning_rate": 0.1}, 5, tmp_path)
    policy, datamodule, trainer = maker.make(settings)
    assert policy.config.learn.learning_rate == 0.1
    assert (datamodule.seed, datamodule.max_env_step) == (5, 100)
    assert trainer.default_root_dir == str(tmp_path)
    assert trainer.checkpoint_callbacks == []


def test_loggers_of_a_trial_write_to_its_folder(tmp_path: Path) -> None:
    csv = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs", "name": "a"}}
    maker = RunMaker({**SETTINGS, "trainer": {"accelerator": "cpu", "logger": [csv]}})
    (logger,) = maker.trial_settings({}, 0, tmp_path)["trainer"]["logger"]
    assert logger["init_args"]["save_dir"] == str(tmp_path)
    assert logger["init_args"]["name"] == "a"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"env_id": "CartPole-v1"}}, "data.max_env_step must be set, or data.max_train_iter: each trial"),
        ({"trainer": {"accelerator": "cpu", "devices": 2}}, "trainer.devices must be 1 .* got 2"),
        ({"dta": {"env_id": "CartPole-v1"}}, "dta"),
    ],
)
def test_run_that_cannot_be_tuned_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunMaker({**SETTINGS, **change})
