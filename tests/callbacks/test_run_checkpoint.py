from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]
Config = dict[str, Any]


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
    """Train in epochs of 16 env steps, behind 16 random ones."""
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


def test_checkpoint_is_written_behind_the_evaluation(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = Noting(tmp_path)
    train(make_trainer, small, callback, max_epochs=1)
    assert ["eval/return_mean" in metrics for metrics in callback.metrics] == [True]


def test_nothing_but_the_checkpoint_and_the_folder_that_it_names_is_left(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path, "run"), max_epochs=3)
    state = torch.load(tmp_path / "run.ckpt", weights_only=True)["ReplayDataModule"]
    assert state["rank_folder"] == "run-64"  # 16 + 3 * 16
    data = ["run-64/rank_0", "run-64/rank_0/buffer.safetensors", "run-64/rank_0/rng.pt"]
    assert content(tmp_path) == ["run-64", *data, "run.ckpt"]


def test_checkpoint_holds_the_weights_and_counters_of_the_end(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    _, policy = train(make_trainer, small, RunCheckpoint(tmp_path), max_epochs=2)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    torch.testing.assert_close(state["state_dict"], dict(policy.state_dict()), rtol=0, atol=0)
    assert state["progress"] == policy.progress.state_dict()
    assert state["progress"]["env_step"] == 48


def test_checkpoint_without_buffer_has_no_folder(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path, save_buffer=False), max_epochs=2)
    assert content(tmp_path) == ["last.ckpt"]
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["ReplayDataModule"]["rank_folder"] is None


def test_saving_that_fails_leaves_the_last_checkpoint_and_its_folder_whole(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path), max_epochs=1)
    before = (tmp_path / "last.ckpt").read_bytes()

    def fail(trainer: Trainer, file: Path, **kwargs: Any) -> None:
        file.write_bytes(b"half a checkpoint")
        raise OSError("no space left on device")

    monkeypatch.setattr(Trainer, "save_checkpoint", fail)
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=4)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path)], max_epochs=2)
    with pytest.raises(OSError, match="no space left"):
        trainer.fit(policy, datamodule, ckpt_path=tmp_path / "last.ckpt")
    assert policy.progress.env_step == 32 + 4 * 8
    assert (tmp_path / "last.ckpt").read_bytes() == before
    named = tmp_path / torch.load(tmp_path / "last.ckpt", weights_only=True)["ReplayDataModule"]["rank_folder"]
    assert content(named) == ["rank_0", "rank_0/buffer.safetensors", "rank_0/rng.pt"]
    assert datamodule.rank_folder is None


def test_folders_that_are_not_of_this_checkpoint_stay(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    for name in ("last-year", "best-48", "last-16"):
        (tmp_path / name).mkdir()
    train(make_trainer, small, RunCheckpoint(tmp_path, save_buffer=False), max_epochs=1)
    assert content(tmp_path) == ["best-48", "last-year", "last.ckpt"]


def test_callback_tells_where_the_checkpoint_lies(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = RunCheckpoint()
    train(make_trainer, small, callback, max_epochs=1)
    assert Path(callback.last_model_path) == tmp_path / "checkpoints" / "last.ckpt"
    assert Path(callback.last_model_path).is_file()


def test_fast_dev_run_writes_no_run(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, RunCheckpoint(tmp_path), fast_dev_run=True)
    assert content(tmp_path) == []


def test_saving_every_zero_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="every_n_epochs must be >= 1, got 0"):
        RunCheckpoint(every_n_epochs=0)
