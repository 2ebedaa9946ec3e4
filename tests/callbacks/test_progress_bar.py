from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from lightning.pytorch import Callback

from lightning_ding.callbacks import EnvStepProgressBar
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]
ENV = partial(CountingEnv, lengths=(4,))  # every episode returns 1 + 2 + 3 + 4 = 10


def bar(refresh_seconds: float = 0) -> dict[str, Any]:
    """Return the Trainer flags for a bar that is redrawn after each round."""
    return {"enable_progress_bar": True, "callbacks": [EnvStepProgressBar(refresh_seconds)]}


def test_bar_counts_env_steps_to_the_end_of_the_budget(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(**bar()).fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64))
    counts = re.findall(r"(\d+)/64 env steps", capsys.readouterr().out)
    # 16 random steps belong to the first round of 8
    assert list(dict.fromkeys(counts)) == ["0", "24", "32", "40", "48", "56", "64"]


def test_bar_continues_at_the_position_of_the_run(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, datamodule = DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64)
    make_trainer().fit(policy, datamodule)
    datamodule.max_env_step = 80
    capsys.readouterr()
    make_trainer(**bar()).fit(policy, datamodule)
    counts = re.findall(r"(\d+)/80 env steps", capsys.readouterr().out)
    assert list(dict.fromkeys(counts)) == ["64", "72", "80"]


def test_bar_without_a_budget_of_env_steps_counts_them_all_the_same(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(**bar()).fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_train_iter=4))
    assert re.findall(r"train: (\d+) env steps", capsys.readouterr().out)[-1] == "32"


def test_bar_shows_returns_and_speeds(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(enable_progress_bar=True)
    trainer.fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64))
    last = capsys.readouterr().out.split("\r")[-1]
    assert re.search(r"return 10, eval 10, env steps/s [\d,]+, updates/s [\d,]+\]", last), last


def test_evaluation_is_shown_as_soon_as_it_is_done(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    datamodule = ReplayDataModule(ENV, num_envs=2, max_env_step=64, rounds_per_epoch=2)
    make_trainer(**bar(refresh_seconds=1e9)).fit(DQNPolicy(small), datamodule)
    shown = re.findall(r"(\d+)/64 env steps \[[^\]]*eval 10", capsys.readouterr().out)
    assert shown[:2] == ["32", "48"]  # 16 random steps and 2 rounds of 8; 2 rounds more


def test_bar_is_not_redrawn_more_often_than_asked(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {**bar(refresh_seconds=1e9), "limit_val_batches": 0}
    make_trainer(**flags).fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64))
    counts = re.findall(r"(\d+)/64 env steps", capsys.readouterr().out)
    assert list(dict.fromkeys(counts)) == ["0", "64"]  # the start and the end


def test_disabled_bar_shows_nothing(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = bar()
    trainer = make_trainer(**flags)
    flags["callbacks"][0].disable()  # as Lightning does on every rank but the first
    trainer.fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64))
    assert "env steps" not in "".join(capsys.readouterr())
    assert not flags["callbacks"][0].is_enabled


class Failing(Callback):
    """Ends a run by an error."""

    def on_train_batch_end(self, *args: Any) -> None:
        raise RuntimeError("on purpose")


def test_bar_is_closed_when_a_run_fails(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = EnvStepProgressBar()
    trainer = make_trainer(enable_progress_bar=True, callbacks=[shown, Failing()])
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(DQNPolicy(small), ReplayDataModule(ENV, num_envs=2, max_env_step=64))
    assert capsys.readouterr().out.endswith("\n")  # so that the error starts on a new line
    assert shown._bar is None


def test_negative_refresh_is_refused() -> None:
    with pytest.raises(ValueError, match="refresh_seconds must be >= 0, got -1"):
        EnvStepProgressBar(-1)
