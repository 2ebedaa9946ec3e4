"""The table of episodes: one row for each, none twice and none lost, also after a kill."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_ding.callbacks import EpisodeRecord, StopAtEnvStep
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, RemoteReplayDataModule, ReplayDataModule
from lightning_ding.policy import CQLPolicy, DQNPolicy
from tests.conftest import MakeTrainer
from tests.datamodules.remote_source import Source
from tests.toys.info_env import InfoEnv

Config = dict[str, Any]
FilesOfAtMost = Callable[[int], AbstractContextManager[None]]
HEADER = ["env_step", "return", "length", "seconds", "success_rate", "wave", "laps"]


def dqn(small: Config) -> DQNPolicy:
    learn = {"batch_size": 2, "update_per_collect": 1}
    return DQNPolicy(deep_merge(small, {"random_collect_size": 0, "collect": {"n_sample": 4}, "learn": learn}))


def data(max_env_step: int = 24, **arguments: Any) -> ReplayDataModule:
    made: Config = {"num_envs": 1, "evaluator_env_num": 1, "rounds_per_epoch": 2, "max_env_step": max_env_step}
    made |= {"info_keys": {"wave": "sum", "laps": "last"}, **arguments}
    return ReplayDataModule(partial(InfoEnv, lengths=(3, 2)), **made)


def read(file: Path) -> list[list[str]]:
    with file.open(newline="") as opened:
        return list(csv.reader(opened))


def without_seconds(file: Path) -> list[list[str]]:
    return [[*row[:3], *row[4:]] for row in read(file)]


def expected(env_step: int) -> list[list[str]]:
    """Return the rows, without seconds, of episodes of 3 and 2 steps that end up to an env step."""
    rows, now, number = [[*HEADER[:3], *HEADER[4:]]], 0, 0
    while (now := now + (2 if number % 2 else 3)) <= env_step:
        odd = number % 2
        laps = "" if odd else str(float(number))
        rows.append([str(now), "3.0" if odd else "6.0", "2" if odd else "3", str(float(odd)), "4.0" if odd else "6.0"])
        rows[-1].append(laps)
        number += 1
    return rows


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let half a second pass between two looks at the clock."""
    times = (100.0 + number / 2 for number in range(10_000))
    monkeypatch.setattr("lightning_ding.callbacks.episode_record.time", SimpleNamespace(monotonic=lambda: next(times)))


@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_episode_of_training_has_a_row(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, mode: Any
) -> None:
    make_trainer(callbacks=[EpisodeRecord()]).fit(dqn(small), data(mode=mode))
    assert read(tmp_path / "episodes.csv")[0] == HEADER
    assert without_seconds(tmp_path / "episodes.csv") == expected(24)
    times = [float(row[3]) for row in read(tmp_path / "episodes.csv")[1:]]
    assert times == [0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 2.5, 2.5, 3.0]  # those of the ends of six rounds of 4 env steps


def test_file_is_in_the_folder_of_the_logger(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    make_trainer(logger=CSVLogger(tmp_path, "a"), callbacks=[EpisodeRecord()]).fit(dqn(small), data())
    assert len(read(tmp_path / "a" / "version_0" / "episodes.csv")) == 10


class Killed(Callback):
    """Ends the process, as far as the callbacks can see, in the middle of a row."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if pl_module.progress.env_step == 28:
            with next(Path(trainer.default_root_dir).rglob("episodes.csv")).open("a") as file:
                file.write("29,6.")
            raise KeyboardInterrupt


def run(make_trainer: MakeTrainer, small: Config, record: EpisodeRecord, *more: Any, **flags: Any) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[record, *more])
    trainer.fit(dqn(small), data(48), **flags)


def test_resumed_run_continues_the_file_without_the_rows_after_the_checkpoint(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(make_trainer, small, EpisodeRecord(), Killed())  # checkpoints are at 8, 16 and 24 env steps
    file = tmp_path / "episodes.csv"
    assert file.read_text().endswith("\n29,6.")
    run(make_trainer, small, EpisodeRecord(), ckpt_path="last")
    assert without_seconds(file) == expected(48)
    seconds = [float(row[3]) for row in read(file)[1:]]
    assert seconds == sorted(seconds)
    assert [one.name for one in tmp_path.glob("*.csv")] == ["episodes.csv"]


def test_resumed_run_in_a_new_folder_begins_with_the_earlier_rows(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    run(make_trainer, small, EpisodeRecord(tmp_path / "first"), StopAtEnvStep(16))
    before = (tmp_path / "first" / "episodes.csv").read_bytes()
    run(make_trainer, small, EpisodeRecord(tmp_path / "second"), ckpt_path="last")
    assert (tmp_path / "first" / "episodes.csv").read_bytes() == before
    assert without_seconds(tmp_path / "second" / "episodes.csv") == expected(48)


def test_file_of_another_run_is_left_alone(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text("mine\n")
    make_trainer(callbacks=[EpisodeRecord()]).fit(dqn(small), data())
    assert (tmp_path / "episodes.csv").read_text() == "mine\n"
    assert without_seconds(tmp_path / "episodes-1.csv") == expected(24)


def test_second_fit_with_the_same_callback_continues_the_file(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer, policy, datamodule = make_trainer(callbacks=[EpisodeRecord()]), dqn(small), data(8)
    trainer.fit(policy, datamodule)
    datamodule.max_env_step = 16
    trainer.fit(policy, datamodule)
    steps = [int(row[0]) for row in read(tmp_path / "episodes.csv")[1:]]
    assert steps == sorted(steps)
    assert (steps[:3], steps[-1] <= 16) == ([3, 5, 8], True)
    assert len(steps) == policy.progress.episode


def test_lost_file_is_reported_and_a_new_one_begun(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(make_trainer, small, EpisodeRecord(), StopAtEnvStep(16))
    (tmp_path / "episodes.csv").unlink()
    with caplog.at_level(logging.WARNING):
        run(make_trainer, small, EpisodeRecord(), ckpt_path="last")
    assert f"6 of the 6 episodes before the checkpoint are missing in {tmp_path / 'episodes.csv'}" in caplog.messages
    assert without_seconds(tmp_path / "episodes.csv")[1:] == expected(48)[7:]


def test_new_columns_of_a_resumed_run_are_empty_in_earlier_rows(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[EpisodeRecord()])
    trainer.fit(dqn(small), data(8, info_keys=["wave"]))
    trainer = make_trainer(enable_checkpointing=True, callbacks=[EpisodeRecord()])
    trainer.fit(dqn(small), data(16, info_keys=["number"]), ckpt_path="last")
    header, *rows = read(tmp_path / "episodes.csv")
    assert header == ["env_step", "return", "length", "seconds", "success_rate", "number", "wave"]
    assert [row[5:] for row in rows] == [["", "2.0"], ["", "1.0"], ["", "2.0"], ["3.0"], ["4.0"], ["5.0"]]


class FullDisk(Callback):
    """Lets files have 150 bytes at most in some rounds."""

    def __init__(self, record: EpisodeRecord, limit: FilesOfAtMost) -> None:
        self.record, self.limit, self.rounds = record, limit, 0
        write = record._write

        def limited(file: Path) -> None:
            self.rounds += 1
            with limit(150 if self.rounds in (3, 4) else 10**9):
                write(file)

        record._write = limited  # type: ignore[method-assign]


def test_rows_that_do_not_fit_on_the_disk_are_written_later(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    files_of_at_most: FilesOfAtMost,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = EpisodeRecord()
    make_trainer(callbacks=[record, FullDisk(record, files_of_at_most)]).fit(dqn(small), data())
    assert without_seconds(tmp_path / "episodes.csv") == expected(24)
    assert sum("its rows are kept and written later" in message for message in caplog.messages) == 1


def test_episodes_of_other_processes_have_rows_too(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    trainer = make_trainer(limit_val_batches=0, max_epochs=-1, callbacks=[EpisodeRecord()])
    trainer.fit(DQNPolicy(small), RemoteReplayDataModule(Source(3), "CartPole-v1", validate=False))
    rows = read(tmp_path / "episodes.csv")[1:]
    assert [row[:3] for row in rows] == [["100", "0.0", "1"], ["110", "1.0", "2"], ["120", "2.0", "3"]]


def test_run_without_episodes_is_refused(make_trainer: MakeTrainer) -> None:
    steps = {"obs": np.zeros((9, 3)), "action": np.linspace(-1, 1, 9)[:, None], "reward": np.ones(9)}
    ends = {"terminated": np.arange(9) == 8, "truncated": np.zeros(9, dtype=bool)}
    trainer = make_trainer(callbacks=[EpisodeRecord()])
    with pytest.raises(ValueError, match="EpisodeRecord needs a datamodule that collects episodes"):
        trainer.fit(CQLPolicy({"learn": {"batch_size": 4}}), OfflineDataModule({**steps, **ends}, max_train_iter=2))


def test_arguments_are_checked(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ValueError, match=r"filename must be a name that ends in \.csv, got 'episodes'"):
        EpisodeRecord(filename="episodes")
    with pytest.raises(ValueError, match=r"info_keys must be names other than env_step, return, .* got \['length'\]"):
        make_trainer(callbacks=[EpisodeRecord()]).fit(dqn(small), data(info_keys=["length"]))


def test_fast_dev_run_writes_nothing(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    make_trainer(fast_dev_run=True, callbacks=[EpisodeRecord()]).fit(dqn(small), data())
    assert not list(tmp_path.rglob("*.csv"))
