"""A disk that is full or read-only costs metrics and nothing else, with every logger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_ding.callbacks import MetricsLogger
from lightning_ding.callbacks.loggers import prepare_loggers
from lightning_ding.callbacks.tensorboard_returns import EventFile, write_without_thread
from lightning_ding.checkpoints.files import UnwritableFolderError
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]
FilesOfAtMost = Callable[[int], AbstractContextManager[None]]


class FullInRounds(Callback):
    """Lets no file grow beyond the size of the event file and 30 bytes in some rounds: parts of events are written."""

    def __init__(self, files_of_at_most: FilesOfAtMost, first: int, last: int) -> None:
        self.limited, self.first, self.last = files_of_at_most, first, last
        self.rounds = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.rounds += 1
        if self.rounds == self.first:
            (file,) = Path(str(trainer.log_dir)).glob("events*")
            self.limit = self.limited(file.stat().st_size + 30)
            self.limit.__enter__()

    def on_train_batch_end(self, *args: Any) -> None:
        if self.rounds == self.last:
            self.limit.__exit__(None, None, None)


def steps_of(folder: Path, tag: str) -> list[int]:
    """Return at which env steps TensorBoard has a metric."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [one.step for one in events.Scalars(tag)]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_full_disk_costs_tensorboard_the_metrics_of_that_time_and_the_run_continues(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    files_of_at_most: FilesOfAtMost,
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = FullInRounds(files_of_at_most, first=3, last=6)
    trainer = make_trainer(logger=TensorBoardLogger(tmp_path), callbacks=[full, MetricsLogger(1)])
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=16 + 8 * 8, rounds_per_epoch=2)
    with caplog.at_level(logging.ERROR, logger="lightning_ding"):
        trainer.fit(DQNPolicy(small), datamodule)
    (record,) = caplog.records
    assert "metrics could not be written to " in record.getMessage()
    assert "File too large" in record.getMessage()
    # rounds of 8 env steps after 16 random ones; MetricsLogger comes after the callback that ends the limit
    assert steps_of(Path(str(trainer.log_dir)), "learn/total_loss") == [24, 32, 64, 72, 80]
    assert steps_of(Path(str(trainer.log_dir)), "eval/return_mean") == [32, 64, 80]


def test_event_file_removes_a_part_of_an_event_and_has_every_event_before_and_after(
    tmp_path: Path, files_of_at_most: FilesOfAtMost, caplog: pytest.LogCaptureFixture
) -> None:
    logger = TensorBoardLogger(tmp_path, "", "")
    prepare_and_replace(logger)
    logger.log_metrics({"x": 1.0}, step=1)
    (file,) = tmp_path.glob("events*")
    size = file.stat().st_size
    with files_of_at_most(size + 10):
        for step in (2, 3):
            logger.log_metrics({"x": 1.0}, step=step)
            assert file.stat().st_size == size
    logger.log_metrics({"x": 1.0}, step=4)
    logger.finalize("success")
    assert steps_of(tmp_path, "x") == [1, 4]
    assert len(caplog.records) == 1


def prepare_and_replace(logger: TensorBoardLogger) -> None:
    write_without_thread(logger.experiment)
    assert isinstance(logger.experiment._get_file_writer().event_writer, EventFile)


def test_event_file_that_somebody_has_deleted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(b"whole")
    file = EventFile(path)
    path.unlink()
    path.parent.rmdir()
    from tensorboard.compat.proto.event_pb2 import Event

    file.add_event(Event(step=3))
    file.close()
    assert path.stat().st_size == 16 + Event(step=3).ByteSize()  # length and two checksums


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_folder_of_metrics_that_cannot_be_written_ends_a_run_at_its_start(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, kind: Any
) -> None:
    (tmp_path / "lightning_logs").write_text("a file in place of the folder")
    trainer = make_trainer(logger=kind(tmp_path, name="lightning_logs", version="v"))
    with pytest.raises(
        UnwritableFolderError,
        match=r"metrics of this run cannot be written to .*lightning_logs/v: .*Not a directory.*; choose another",
    ):
        trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=32))


def test_folder_of_metrics_that_cannot_be_written_ends_the_other_ranks_of_the_machine(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    trainer = make_trainer(logger=CSVLogger(tmp_path / "file"))
    monkeypatch.setattr(type(trainer.strategy), "is_global_zero", False)
    with pytest.raises(UnwritableFolderError):  # otherwise they would wait for rank zero forever
        prepare_loggers(trainer)


class Full(Logger):
    """Cannot write in any of its methods."""

    name, version = "full", 0

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.called: set[str] = set()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.called.add("log_metrics")
        raise self.error

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        self.called.add("log_hyperparams")
        raise self.error

    def save(self) -> None:
        self.called.add("save")
        raise self.error

    def finalize(self, status: str) -> None:
        self.called.add("finalize")
        raise self.error


def test_logger_that_can_write_nothing_costs_one_line_and_no_run(
    make_trainer: MakeTrainer, small: Config, caplog: pytest.LogCaptureFixture
) -> None:
    full = Full(OSError(28, "No space left on device"))
    policy = DQNPolicy(small)
    with caplog.at_level(logging.ERROR, logger="lightning_ding"):
        make_trainer(logger=full).fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=48))
    assert policy.progress.env_step == 48
    assert full.called == {"log_metrics", "log_hyperparams", "save", "finalize"}
    (record,) = caplog.records
    assert "Full could not write metrics: [Errno 28] No space left on device; the run continues" in record.getMessage()


def test_other_errors_of_a_logger_are_raised(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(logger=Full(ValueError("a metric that is no number")))
    prepare_loggers(trainer)
    with pytest.raises(ValueError, match="no number"):
        trainer.loggers[0].log_metrics({})


def test_error_of_the_disk_that_a_logger_wraps_is_recognised(make_trainer: MakeTrainer) -> None:
    error = ValueError("you tried to log 1.0 which is currently not supported")  # of Lightning's TensorBoardLogger
    error.__cause__ = OSError(30, "Read-only file system")
    trainer = make_trainer(logger=Full(error))
    for _ in range(2):
        prepare_loggers(trainer)
    trainer.loggers[0].log_metrics({})
