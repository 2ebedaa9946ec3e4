from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, ProgressBar, TQDMProgressBar

from lightning_ding.callbacks import (
    BestCheckpoint,
    EnvStepProgressBar,
    MetricsLogger,
    RunCheckpoint,
    StopAtEnvStep,
    StopAtReturn,
    StopAtTrainIter,
    StopOnSignal,
    Watchdog,
)
from lightning_ding.callbacks.defaults import add_checkpoint_callbacks
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]


def of_kind(trainer: Trainer, *kinds: type[Callback]) -> list[type[Callback]]:
    """Return the types of a trainer's callbacks of some kinds."""
    return [type(callback) for callback in trainer.callbacks if isinstance(callback, kinds)]  # type: ignore[attr-defined]


def fit(trainer: Trainer, small: Config, **arguments: Any) -> DQNPolicy:
    policy = DQNPolicy(small)
    settings: Config = {"env_id": "CartPole-v1", "num_envs": 2, "max_env_step": 64, "rounds_per_epoch": 2}
    trainer.fit(policy, ReplayDataModule(**{**settings, **arguments}))
    return policy


def test_stock_trainer_gets_our_bar_and_checkpoints_in_place_of_lightnings(small: Config, tmp_path: Path) -> None:
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path)
    fit(trainer, small)
    assert of_kind(trainer, ProgressBar) == [EnvStepProgressBar]
    assert of_kind(trainer, Checkpoint) == [BestCheckpoint, RunCheckpoint]
    assert of_kind(trainer, MetricsLogger, StopAtEnvStep, StopAtTrainIter, StopAtReturn) == [
        MetricsLogger,
        StopAtEnvStep,
    ]
    names = sorted(file.name for file in Path(str(trainer.log_dir), "checkpoints").iterdir())
    assert names == ["best.ckpt", "last-64", "last.ckpt"]


def test_every_budget_brings_its_callback(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer()
    fit(trainer, small, max_env_step=50, max_train_iter=60, stop_value=1_000)
    stops = {type(c): vars(c) for c in trainer.callbacks if type(c).__name__.startswith("StopAt")}  # type: ignore[attr-defined]
    assert len(stops) == 3
    assert stops[StopAtEnvStep]["limit"] == 50
    assert stops[StopAtTrainIter]["limit"] == 60
    assert stops[StopAtReturn]["stop_value"] == 1_000


def test_bar_that_the_user_configured_is_kept(make_trainer: MakeTrainer, small: Config) -> None:
    own = TQDMProgressBar(refresh_rate=7)
    trainer = make_trainer(enable_progress_bar=True, callbacks=[own])
    fit(trainer, small)
    assert [callback for callback in trainer.callbacks if isinstance(callback, ProgressBar)] == [own]  # type: ignore[attr-defined]


def test_checkpoint_callback_of_the_user_works_together_with_run_checkpoint(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    own = ModelCheckpoint(tmp_path / "own", monitor="eval/return_mean", mode="max", filename="{step}")
    trainer = make_trainer(enable_checkpointing=True, callbacks=[own])
    fit(trainer, small)
    assert of_kind(trainer, Checkpoint) == [ModelCheckpoint, RunCheckpoint]
    assert own.best_model_score is not None
    assert own.best_model_score >= trainer.callback_metrics["eval/return_mean"]
    assert Path(own.best_model_path).is_file()


def test_best_checkpoint_is_added_to_callbacks_that_monitor_nothing_and_comes_first(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    own = ModelCheckpoint(tmp_path / "mine", every_n_epochs=1, save_top_k=-1)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[own])
    fit(trainer, small)
    assert of_kind(trainer, Checkpoint) == [BestCheckpoint, ModelCheckpoint, RunCheckpoint]
    assert len(list((tmp_path / "mine").iterdir())) == 3  # an epoch is 16 of 64 env steps, 16 are random


def test_callback_that_monitors_a_metric_comes_first_and_replaces_best_checkpoint(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    every, best = ModelCheckpoint(tmp_path, save_top_k=-1), ModelCheckpoint(monitor="eval/return_mean", mode="max")
    trainer = make_trainer(enable_checkpointing=True, callbacks=[every, best])
    for _ in range(2):
        add_checkpoint_callbacks(trainer)
        assert trainer.checkpoint_callback is best
        assert of_kind(trainer, Checkpoint) == [ModelCheckpoint, ModelCheckpoint, RunCheckpoint]


def test_best_checkpoint_takes_another_name_than_a_file_of_the_user(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[ModelCheckpoint(filename="best")])
    add_checkpoint_callbacks(trainer)
    assert getattr(trainer.checkpoint_callback, "filename", None) == "best_return"


def test_subclass_of_a_callback_that_comes_along_takes_its_place(make_trainer: MakeTrainer, small: Config) -> None:
    class Patient(Watchdog):
        pass

    trainer = make_trainer(callbacks=[Patient(), type("Polite", (StopOnSignal,), {})()])
    fit(trainer, small)
    assert [kind.__name__ for kind in of_kind(trainer, Watchdog, StopOnSignal)] == ["Patient", "Polite"]


def test_early_stopping_of_the_user_works(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer(callbacks=[EarlyStopping("eval/return_mean", patience=2, mode="max")])
    policy = fit(trainer, small, env_id=partial(CountingEnv, lengths=(4,)), max_env_step=10_000)
    assert policy.progress.train_iter == 3 * 4  # epochs of 4 updates; the second and the third are no better


@pytest.mark.parametrize(("flag", "kind"), [("enable_progress_bar", ProgressBar), ("enable_checkpointing", Checkpoint)])
def test_kind_that_is_switched_off_stays_off(
    make_trainer: MakeTrainer, small: Config, flag: str, kind: type[Callback]
) -> None:
    on = {"enable_progress_bar": True, "enable_checkpointing": True}
    trainer = make_trainer(**{**on, flag: False})
    fit(trainer, small)
    assert of_kind(trainer, kind) == []
    assert len(of_kind(trainer, ProgressBar, Checkpoint)) == (2 if kind is ProgressBar else 1)


def test_run_with_everything_switched_off_writes_and_shows_nothing(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(enable_checkpointing=False, enable_progress_bar=False, logger=False)
    fit(trainer, small)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
    assert "collect/eps" in trainer.callback_metrics  # other callbacks can read them all the same


def after(trainer: Trainer) -> list[Any]:
    return list(trainer.callbacks)  # type: ignore[attr-defined]


def test_validating_after_a_fit_leaves_its_callbacks_and_the_best_score(
    make_trainer: MakeTrainer, small: Config
) -> None:
    trainer = make_trainer(enable_checkpointing=True, enable_progress_bar=True)
    policy = fit(trainer, small)
    callbacks = list(trainer.callbacks)  # type: ignore[attr-defined]
    best = next(callback for callback in callbacks if isinstance(callback, BestCheckpoint))
    score, file = best.best_model_score, Path(best.best_model_path).read_bytes()
    trainer.validate(policy, ReplayDataModule("CartPole-v1", seed=7), verbose=False)
    kinds = (MetricsLogger, ProgressBar, Checkpoint)  # the others hold only the limits of their run
    kept = [
        [id(callback) for callback in list_ if isinstance(callback, kinds)] for list_ in (callbacks, after(trainer))
    ]
    assert kept[0] == kept[1]
    assert best.best_model_score == score
    assert Path(best.best_model_path).read_bytes() == file


def test_default_callback_that_the_user_configured_is_not_added_twice(make_trainer: MakeTrainer, small: Config) -> None:
    own = [MetricsLogger(3), EnvStepProgressBar(1), RunCheckpoint(every_n_epochs=2)]
    trainer = make_trainer(enable_checkpointing=True, enable_progress_bar=True, callbacks=own)
    fit(trainer, small)
    kept = [c for c in after(trainer) if isinstance(c, (MetricsLogger, ProgressBar, Checkpoint))]
    assert [one for one in kept if one in own] == own
    assert [type(one) for one in kept if one not in own] == [BestCheckpoint]  # the one of the two that was missing


def test_run_can_be_ended_by_a_signal_and_is_watched(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer()
    for _ in range(2):
        fit(trainer, small)
        assert set(of_kind(trainer, StopOnSignal, Watchdog)) == {StopOnSignal, Watchdog}
        assert len(of_kind(trainer, StopOnSignal, Watchdog)) == 2
    (signals,) = (callback for callback in after(trainer) if isinstance(callback, StopOnSignal))
    (watchdog,) = (callback for callback in after(trainer) if isinstance(callback, Watchdog))
    assert (signals.grace, watchdog.seconds) == (25.0, 600.0)


def test_signals_and_watch_that_the_user_configured_are_kept(make_trainer: MakeTrainer, small: Config) -> None:
    own = [StopOnSignal(grace=3.0), Watchdog(None)]
    trainer = make_trainer(callbacks=own)
    fit(trainer, small)
    assert [callback for callback in after(trainer) if isinstance(callback, (StopOnSignal, Watchdog))] == own
