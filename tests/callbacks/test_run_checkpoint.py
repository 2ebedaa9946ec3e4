from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding import __version__
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.checkpoints import SaveBuffer, last_checkpoint, verify
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]
FilesOfAtMost = Callable[[int], AbstractContextManager[None]]


class Noting(RunCheckpoint):
    """Notes in which epochs it is asked to save, and what lies in the folder then."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epochs: list[int] = []
        self.metrics: list[set[str]] = []

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        self.epochs.append(trainer.current_epoch)
        self.metrics.append(set(trainer.callback_metrics))
        super().save(trainer, pl_module)


def train(
    make_trainer: MakeTrainer, small: Config, callback: RunCheckpoint, max_env_step: int | None = None, **flags: Any
) -> tuple[Trainer, DQNPolicy]:
    """Train in epochs of 16 env steps, after 16 random ones."""
    policy = DQNPolicy(small)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2, max_env_step=max_env_step)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[callback], **flags)
    trainer.fit(policy, datamodule)
    return trainer, policy


def content(folder: Path) -> list[str]:
    """Return the names of everything in a folder, hidden files too, but not where the best checkpoint lies."""
    names = [str(file.relative_to(folder)) for file in folder.rglob("*")]
    return sorted(name for name in names if not name.startswith("checkpoints"))


def test_checkpoint_is_written_every_so_many_epochs_and_at_the_end_of_the_budget(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    callback = Noting(tmp_path, every_n_epochs=2)
    train(make_trainer, small, callback, max_env_step=16 + 5 * 16)
    assert callback.epochs == [1, 3, 4]


def test_checkpoint_is_written_at_the_end_of_the_epochs_asked_for(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    callback = Noting(tmp_path, every_n_epochs=2)
    train(make_trainer, small, callback, max_epochs=3)
    assert callback.epochs == [1, 2]


def test_checkpoint_is_written_after_the_evaluation(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = Noting(tmp_path)
    train(make_trainer, small, callback, max_epochs=1)
    assert ["eval/return_mean" in metrics for metrics in callback.metrics] == [True]


def test_nothing_but_the_checkpoint_and_its_second_name_is_left(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path, "run"), max_epochs=3)
    state = torch.load(tmp_path / "run.ckpt", weights_only=True)["ReplayDataModule"]
    assert state["rank_folder"] == "run-64"  # 16 + 3 * 16
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "checkpoints") == ["run-64", "run.ckpt"]
    found = content(tmp_path / "run-64")
    assert {"manifest.json", "run.ckpt", "rank_0", "rank_0/buffer.safetensors"} <= set(found)
    assert (tmp_path / "run.ckpt").samefile(tmp_path / "run-64" / "run.ckpt")


def test_manifest_says_what_the_checkpoint_is_and_lists_every_file(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path), max_epochs=3)
    manifest = verify(tmp_path / "last-64")
    facts = {name: manifest[name] for name in ("env_step", "train_iter", "version", "world_size")}
    assert facts == {"env_step": 64, "train_iter": 12, "version": __version__, "world_size": 1}
    files = {name for name in content(tmp_path / "last-64") if "." in name}
    assert set(manifest["files"]) == files - {"manifest.json"}


def test_checkpoint_holds_the_weights_and_counters_of_the_end(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, policy = train(make_trainer, small, RunCheckpoint(tmp_path), max_epochs=2)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    torch.testing.assert_close(state["state_dict"], dict(policy.state_dict()), rtol=0, atol=0)
    assert state["progress"] == policy.progress.state_dict()
    assert state["progress"]["env_step"] == 48


def test_newest_checkpoints_are_kept(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path, keep_last=2), max_epochs=3)
    assert sorted(path.name for path in tmp_path.glob("last*")) == ["last-48", "last-64", "last.ckpt"]
    assert last_checkpoint(tmp_path) == tmp_path / "last-64" / "run.ckpt"


@pytest.mark.parametrize(
    ("save_buffer", "kept"), [("never", [False, False]), ("last", [False, True]), ("always", [True, True])]
)
def test_buffers_are_kept_in_the_checkpoints_asked_for(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, save_buffer: SaveBuffer, kept: list[bool]
) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path, save_buffer=save_buffer, keep_last=2), max_epochs=3)
    folders = [tmp_path / "last-48", tmp_path / "last-64"]
    assert [(folder / "rank_0" / "buffer.safetensors").is_file() for folder in folders] == kept
    assert all(any((folder / "rank_0").glob("*.pt")) for folder in folders)  # the generators are there in any case
    assert [verify(folder)["env_step"] for folder in folders] == [48, 64]


@pytest.mark.parametrize("save_buffer", [True, False, 1, "first"])
def test_buffers_kept_in_no_known_way_are_refused(save_buffer: Any) -> None:
    with pytest.raises(ValueError, match=r'save_buffer must be "never" \(formerly False\), "last" .* got'):
        RunCheckpoint(save_buffer=save_buffer)


class Twice(RunCheckpoint):
    """Saves twice each time, and notes what lies in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.left: list[list[str]] = []

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        for _ in range(2):
            super().save(trainer, pl_module)
            self.left.append(sorted(path.name for path in Path(str(self._folder)).iterdir()))


def test_run_that_saves_twice_at_one_env_step_keeps_the_second(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    callback = Twice(tmp_path / "here")
    train(make_trainer, small, callback, max_epochs=1)
    assert callback.left == [["last-32", "last.ckpt"], ["last-32-2", "last.ckpt"]]
    assert last_checkpoint(tmp_path / "here") == tmp_path / "here" / "last-32-2" / "run.ckpt"
    state = torch.load(tmp_path / "here" / "last.ckpt", weights_only=True)
    assert state["ReplayDataModule"]["rank_folder"] == "last-32-2"


class FullDisk(RunCheckpoint):
    """Lets no file have more than some kilobytes while it saves in some epochs."""

    def __init__(self, folder: Path, limited: Any, full_in: set[int], **arguments: Any) -> None:
        super().__init__(folder, **arguments)
        self.limited, self.full_in = limited, full_in
        self.left: list[list[str]] = []

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        with self.limited(2_000 if trainer.current_epoch in self.full_in else 10**9):
            super().save(trainer, pl_module)
        self.left.append(sorted(path.name for path in Path(str(self._folder)).iterdir()))


@pytest.mark.parametrize("save_buffer", ["last", "never"], ids=["in the buffer", "in Lightning's file"])
def test_full_disk_keeps_the_last_checkpoint_and_the_run_continues_and_tries_again(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    files_of_at_most: FilesOfAtMost,
    caplog: pytest.LogCaptureFixture,
    save_buffer: SaveBuffer,
) -> None:
    callback = FullDisk(tmp_path / "here", files_of_at_most, {1, 2}, save_buffer=save_buffer)
    with caplog.at_level(logging.ERROR, logger="lightning_ding"):
        _, policy = train(make_trainer, small, callback, max_epochs=4)
    assert policy.progress.env_step == 80
    assert callback.left == 3 * [["last-32", "last.ckpt"]] + [["last-80", "last.ckpt"]]
    assert verify(tmp_path / "here" / "last-80")["env_step"] == 80
    first, second = (record.getMessage() for record in caplog.records)
    assert "the last checkpoint of env step 48 could not be written" in first
    assert str(tmp_path / "here") in first
    assert "File too large" in first
    assert "env step 64" in second


def test_run_whose_last_checkpoint_could_not_be_written_ends_with_an_error(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, files_of_at_most: FilesOfAtMost
) -> None:
    folder = tmp_path / "here"
    callback = FullDisk(folder, files_of_at_most, {2})
    with pytest.raises(OSError, match=r"last checkpoint of this run could not be written \(.*too large.*last\.ckpt"):
        train(make_trainer, small, callback, max_epochs=3)
    assert last_checkpoint(folder) == folder / "last-48" / "run.ckpt"
    assert (folder / "last.ckpt").samefile(folder / "last-48" / "run.ckpt")


def test_disk_that_is_full_from_the_first_checkpoint_on_ends_no_run_before_its_end(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullSoon(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            monkeypatch.setattr(Path, "mkdir", refuse)

    policy = DQNPolicy(small)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2)
    callbacks = [RunCheckpoint(tmp_path / "here"), FullSoon()]
    trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks, max_epochs=3)
    with pytest.raises(OSError, match="there is no earlier one"):
        trainer.fit(policy, datamodule)
    assert policy.progress.env_step == 64
    assert datamodule.rank_folder is None


def test_older_checkpoint_that_cannot_be_removed_is_no_failure_of_the_new_one(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("shutil.rmtree", refuse)
    train(make_trainer, small, RunCheckpoint(tmp_path), max_epochs=2)
    assert last_checkpoint(tmp_path) == tmp_path / "last-48" / "run.ckpt"
    assert "could not be removed" in caplog.text


def test_older_checkpoint_that_cannot_be_read_does_not_end_the_run(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Damaging(Noting):
        def save(self, trainer: Trainer, pl_module: Any) -> None:
            super().save(trainer, pl_module)
            if trainer.current_epoch == 0:
                (tmp_path / "last-32" / "manifest.json").write_text("")

    callback = Damaging(tmp_path, keep_last=2)
    train(make_trainer, small, callback, max_epochs=3)
    assert callback.epochs == [0, 1, 2]
    assert last_checkpoint(tmp_path) == tmp_path / "last-64" / "run.ckpt"
    assert "older checkpoints could not be removed" in caplog.text


def test_callback_tells_where_the_checkpoint_lies(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = RunCheckpoint()
    train(make_trainer, small, callback, max_epochs=1)
    assert Path(callback.last_model_path) == tmp_path / "checkpoints" / "last.ckpt"
    assert Path(callback.last_model_path).is_file()


def test_fast_dev_run_writes_no_run(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path), fast_dev_run=True)
    assert content(tmp_path) == []


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="keep_last must be >= 1, got 0"):
        RunCheckpoint(keep_last=0)
    with pytest.raises(ValueError, match="every_n_epochs must be >= 1, got 0"):
        RunCheckpoint(every_n_epochs=0)
