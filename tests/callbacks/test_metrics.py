from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_ding.callbacks import MetricsLogger
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]
Row = dict[str, float]
LEARN = {"batch_size": 2, "update_per_collect": 2}


class PatientEnv(CountingEnv):
    """A counting env that stays in its episode when it is reset before the first step of it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode -= self._episode >= 0 and self._step == 0
        return super().reset(seed=seed, options=options)


def train(
    make_trainer: MakeTrainer, small: Config, folder: Path, *callbacks: Callback, rounds: int = 6, **flags: Any
) -> tuple[Trainer, list[Row]]:
    """Train on episodes of 1, 2 and 3 steps, in rounds of 4 env steps; return what was logged."""
    policy = DQNPolicy(deep_merge(small, {"random_collect_size": 0, "collect": {"n_sample": 4}, "learn": LEARN}))
    datamodule = ReplayDataModule(
        partial(PatientEnv, lengths=(1, 2, 3)), num_envs=1, max_env_step=4 * rounds, rounds_per_epoch=3
    )
    logger = CSVLogger(folder, name="")
    trainer = make_trainer(logger=logger, callbacks=list(callbacks), **flags)
    trainer.fit(policy, datamodule)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        return trainer, [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def of(rows: list[Row], name: str) -> list[tuple[float, float]]:
    """Return where on the x axis a metric was written, and what."""
    return [(row["step"], row[name]) for row in rows if name in row]


class Clock(Callback):
    """Lets half a second pass in every round."""

    def __init__(self) -> None:
        self.now = 100.0

    def on_train_batch_start(self, *args: Any) -> None:
        self.now += 0.5


def test_metrics_are_written_every_so_many_rounds_and_at_the_end_over_env_steps(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, rows = train(make_trainer, small, tmp_path, MetricsLogger(2), rounds=5, limit_val_batches=0)
    # 2 rounds of 4 env steps, 2 rounds, and the one that is left; 2 updates a round
    assert of(rows, "progress/train_iter") == [(8, 4), (16, 8), (20, 10)]


def test_return_mean_is_that_of_exactly_the_episodes_that_ended_since_the_last_writing(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, rows = train(make_trainer, small, tmp_path, MetricsLogger(2), limit_val_batches=0)
    # episodes end at the steps 1, 3, 6 | 7, 9, 12 | 13, 15, 18 | 19, 21, 24 with the returns 1, 3, 6 each time
    means = [(8, (1 + 3 + 6 + 1) / 4), (16, (3 + 6 + 1 + 3) / 4), (24, (6 + 1 + 3 + 6) / 4)]
    assert of(rows, "collect/return_mean") == means
    assert of(rows, "collect/length_mean") == [(8, (1 + 2 + 3 + 1) / 4), (16, (2 + 3 + 1 + 2) / 4), (24, 9 / 4)]
    assert of(rows, "progress/episode") == [(8, 4), (16, 8), (24, 12)]


def test_metrics_are_written_before_an_evaluation_for_whoever_monitors_them(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, rows = train(make_trainer, small, tmp_path, MetricsLogger(100))
    assert [step for step, _ in of(rows, "learn/total_loss")] == [12, 24]  # an epoch is 3 rounds of 4 env steps


def test_metrics_are_written_as_often_as_the_trainer_says(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, rows = train(make_trainer, small, tmp_path, log_every_n_steps=1, limit_val_batches=0)
    assert [step for step, _ in of(rows, "learn/total_loss")] == [4, 8, 12, 16, 20, 24]


def test_time_of_an_evaluation_is_no_training_time(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowEvaluation(Clock):
        def on_validation_epoch_start(self, *args: Any) -> None:
            self.now += 1_000

    clock = SlowEvaluation()
    monkeypatch.setattr("lightning_ding.callbacks.metrics.time", SimpleNamespace(perf_counter=lambda: clock.now))
    _, rows = train(make_trainer, small, tmp_path, clock, MetricsLogger(100))
    assert of(rows, "time/env_steps_per_second") == [(12, 8), (24, 8)]  # 4 env steps in half a second


def test_no_return_is_written_where_no_episode_ended(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy = DQNPolicy(deep_merge(small, {"random_collect_size": 0, "collect": {"n_sample": 4}, "learn": LEARN}))
    datamodule = ReplayDataModule(partial(CountingEnv, lengths=(100,)), num_envs=1, max_env_step=8)
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(policy, datamodule)
    assert "learn/total_loss" in trainer.callback_metrics
    assert "collect/return_mean" not in trainer.callback_metrics


def test_names_say_where_a_metric_comes_from(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    _, rows = train(make_trainer, small, tmp_path)
    names = {name for row in rows for name in row if "/" in name}
    assert names == {
        "buffer/count",
        "buffer/pushed_per_second",
        "buffer/removed_per_second",
        "buffer/sampled_per_second",
        "collect/eps",
        "collect/length_mean",
        "collect/return_mean",
        "eval/length_mean",
        "eval/return_max",
        "eval/return_mean",
        "eval/return_min",
        "eval/return_std",
        "learn/cur_lr",
        "learn/data_age",
        "learn/dead_units",
        "learn/explained_variance",
        "learn/grad_norm",
        "learn/obs_abs_max",
        "learn/obs_changing",
        "learn/obs_mean",
        "learn/obs_std",
        "learn/q_value",
        "learn/reward_abs_max",
        "learn/reward_mean",
        "learn/reward_std",
        "learn/target_mean",
        "learn/target_q_value",
        "learn/target_std",
        "learn/total_loss",
        "learn/value_mean",
        "learn/value_std",
        "progress/episode",
        "progress/train_iter",
        "time/env_steps_per_second",
        "time/updates_per_second",
    }


def test_buffer_says_how_much_it_holds(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    _, rows = train(make_trainer, small, tmp_path, MetricsLogger(2), limit_val_batches=0)
    assert of(rows, "buffer/count") == [(8, 8), (16, 16), (24, 24)]


def test_evaluations_are_written_over_env_steps_too(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    _, rows = train(make_trainer, small, tmp_path)
    # an epoch is 3 rounds of 4 env steps; the two episodes of an evaluation return 1 and 3, or 6 and 1, ...
    assert [step for step, _ in of(rows, "eval/return_mean")] == [12, 24]


def test_written_metrics_stand_in_the_trainers_callback_metrics(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer, rows = train(make_trainer, small, tmp_path, MetricsLogger(2), limit_val_batches=0)
    written = {name: value for name, value in rows[-1].items() if "/" in name or name == "step"}
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == pytest.approx(written)


def test_speed_is_what_was_done_since_the_last_writing_over_the_time_it_took(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    fake = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr("lightning_ding.callbacks.metrics.time", fake)
    _, rows = train(make_trainer, small, tmp_path, clock, MetricsLogger(2), limit_val_batches=0)
    # a round is half a second, 4 env steps and 2 updates
    assert of(rows, "time/env_steps_per_second") == [(8, 8), (16, 8), (24, 8)]
    assert of(rows, "time/updates_per_second") == [(8, 4), (16, 4), (24, 4)]


def test_writing_every_zero_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="log_every_n_rounds must be >= 1 or None, got 0"):
        MetricsLogger(0)


class SuccessEnv(PatientEnv):
    """A counting env that succeeds in every second episode; the others say that they did not, or nothing at all."""

    def step(self, action: Any) -> Any:
        *answer, info = super().step(action)
        said = {} if self._episode % 4 == 2 else {"is_success": self._episode % 2 == 0}
        return *answer, {**info, **said}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_success_of_the_last_steps_is_logged_as_a_rate(make_trainer: MakeTrainer, small: Config, mode: Any) -> None:
    policy = DQNPolicy(deep_merge(small, {"random_collect_size": 0, "collect": {"n_sample": 4}, "learn": LEARN}))
    env = partial(SuccessEnv, lengths=(2,))
    arguments: Config = {"num_envs": 1, "evaluator_env_num": 1, "n_evaluator_episode": 3, "rounds_per_epoch": 3}
    trainer = make_trainer()
    trainer.fit(policy, ReplayDataModule(env, mode=mode, max_env_step=12, **arguments))

    rate = {name: float(trainer.callback_metrics[f"{name}/success_rate"]) for name in ("collect", "eval")}
    assert rate["collect"] == pytest.approx(2 / 5)  # episodes 0 to 5, of which the third says nothing
    assert rate["eval"] == pytest.approx(1 / 2)  # episodes 0 to 2


def test_no_rate_of_success_is_logged_for_an_env_without_one(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer, rows = train(make_trainer, small, tmp_path)
    assert not any("success" in name for name in (*trainer.callback_metrics, *(name for row in rows for name in row)))
