"""The folder that the checkpoint callbacks share: where it is, and which run continues in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.callbacks.shared_folder import CLAIM_FILE, FolderClaim
from lightning_ding.checkpoints.files import UnwritableFolderError
from lightning_ding.checkpoints.lightning_file import save_checkpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]


class RemoteLogger(Logger):
    """Keeps its numbers elsewhere, as WandbLogger does: a folder, a project, and a version for each run or none."""

    def __init__(self, save_dir: Path | None, version: str | int | None) -> None:
        super().__init__()
        self._save_dir, self._version = save_dir, version

    @property
    def name(self) -> str:
        return "project"

    @property
    def version(self) -> str | int | None:
        return self._version

    @property
    def save_dir(self) -> str | None:
        return None if self._save_dir is None else str(self._save_dir)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...


def fit(trainer: Trainer, small: Config, max_env_step: int = 32, **arguments: Any) -> Trainer:
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=1, max_env_step=max_env_step)
    trainer.fit(DQNPolicy(small), datamodule, **arguments)
    return trainer


def run(make_trainer: MakeTrainer, small: Config, logger: Any = False, **arguments: Any) -> tuple[Path, Path]:
    """Train a new run, and return the folders of its two checkpoints."""
    trainer = fit(make_trainer(logger=logger, enable_checkpointing=True), small, **arguments)
    best, last = (next(one for one in trainer.checkpoint_callbacks if isinstance(one, kind)) for kind in KINDS)
    return Path(best.best_model_path).parent, Path(last.last_model_path).parent


KINDS: tuple[Any, Any] = (BestCheckpoint, RunCheckpoint)


def env_step(file: Path) -> int:
    return int(torch.load(file, weights_only=True)["progress"]["env_step"])


@pytest.mark.parametrize(("version", "folder"), [("abc", "abc"), (3, "version_3"), (None, "version_None")])
def test_checkpoints_lie_where_those_of_lightning_would(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, version: Any, folder: str
) -> None:
    logger = RemoteLogger(tmp_path / "logs", version)
    trainer = make_trainer(logger=logger, enable_checkpointing=True, callbacks=[BestCheckpoint(), ModelCheckpoint()])
    fit(trainer, small)
    paths = {Path(str(getattr(one, "best_model_path", ""))) for one in trainer.checkpoint_callbacks}
    assert {path.parent for path in paths if path.name} == {tmp_path / "logs" / "project" / folder / "checkpoints"}


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_loggers_of_lightning_give_every_run_a_folder(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, kind: Any
) -> None:
    folders = [run(make_trainer, small, kind(tmp_path, name="runs"))[0] for _ in range(2)]
    assert folders == [tmp_path / "runs" / f"version_{number}" / "checkpoints" for number in range(2)]


@pytest.mark.parametrize("logged", [False, True], ids=["logger=False", "logger without version"])
@pytest.mark.filterwarnings("ignore:.*contains checkpoints of another run")
def test_new_run_replaces_no_file_of_another(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, logged: bool
) -> None:
    logger = RemoteLogger(None, None) if logged else False
    first = run(make_trainer, small, logger)
    before = {path: path.read_bytes() for path in first[0].rglob("*.ckpt")}
    second, third = run(make_trainer, small, logger), run(make_trainer, small, logger)
    assert [first, second, third] == [(folder, folder) for folder in (first[0], first[0] / "v1", first[0] / "v2")]
    assert len(before) == 3
    assert all(path.read_bytes() == content for path, content in before.items())


def test_new_run_in_a_chosen_folder_says_where_its_checkpoints_go(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def trainer() -> Trainer:
        return make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path / "here")])

    fit(trainer(), small)
    with pytest.warns(
        UserWarning, match=r"here contains checkpoints of another run; those of this run go to .*here/v1"
    ):
        fit(trainer(), small)
    assert (tmp_path / "here" / "v1" / "last.ckpt").exists()


@pytest.mark.filterwarnings("ignore:.*contains checkpoints of another run")
@pytest.mark.parametrize("ckpt_path", ["last", "v1/last.ckpt", "v1/best.ckpt"])
def test_resumed_run_continues_in_its_folder(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, ckpt_path: str
) -> None:
    for _ in range(2):
        run(make_trainer, small)
    folder = tmp_path / "checkpoints"
    path = ckpt_path if ckpt_path == "last" else folder / ckpt_path
    _, last = run(make_trainer, small, max_env_step=64, ckpt_path=path)
    assert last == folder / "v1"
    assert (env_step(folder / "last.ckpt"), env_step(folder / "v1" / "last.ckpt")) == (32, 64)


@pytest.mark.filterwarnings("ignore:.*contains checkpoints of another run")
def test_last_is_the_newest_of_all_versions_of_a_logger(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    for version in ("first", "second"):
        run(make_trainer, small, RemoteLogger(tmp_path, version), max_env_step=48 if version == "second" else 32)
    trainer = make_trainer(logger=RemoteLogger(tmp_path, "third"), enable_checkpointing=True)
    fit(trainer, small, max_env_step=64, ckpt_path="last")
    assert "second" in str(trainer.ckpt_path)


def test_last_without_a_logger_is_of_a_run_without_one_in_the_same_root(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    run(make_trainer, small)
    (tmp_path / "checkpoints").rename(tmp_path / "other_root")
    with pytest.raises(ValueError, match=r"needs a complete checkpoint, but there is none in .*checkpoints"):
        run(make_trainer, small, max_env_step=64, ckpt_path="last")


def test_second_fit_of_a_trainer_continues_in_its_folder(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer = make_trainer(enable_checkpointing=True)
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=32)
    trainer.fit(policy, datamodule)
    datamodule.max_env_step = 64
    trainer.fit(policy, datamodule)
    assert not (tmp_path / "checkpoints" / "v1").exists()


def test_callbacks_with_a_relative_folder_share_it(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks = [BestCheckpoint(dirpath="mine"), RunCheckpoint(dirpath="mine")]  # Lightning makes the second absolute
    fit(make_trainer(enable_checkpointing=True, callbacks=callbacks), small)
    assert {path.parent for path in tmp_path.rglob("*t.ckpt")} == {tmp_path / "mine"}  # best and last
    assert [str(one.message) for one in recwarn if "of this run go to" in str(one.message)] == []


@pytest.mark.filterwarnings("ignore:.*contains checkpoints of another run", "ignore:Checkpoint directory")
def test_checkpoint_callbacks_of_the_user_do_not_select_the_folder_of_another_run(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    for _ in range(2):
        fit(make_trainer(enable_checkpointing=True, callbacks=[ModelCheckpoint()]), small)
    assert {path.parent.name for path in tmp_path.rglob("last.ckpt")} == {"checkpoints", "v1"}


@pytest.mark.filterwarnings("ignore:.*of this run go to")
def test_folder_of_one_callback_inside_that_of_another_replaces_no_checkpoint_of_another_run(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    for max_env_step in (32, 64):  # the best checkpoints are in the subfolder checkpoints
        trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path)])
        fit(trainer, small, max_env_step)
    assert (env_step(tmp_path / "last.ckpt"), env_step(tmp_path / "v1" / "last.ckpt")) == (32, 64)


@pytest.mark.filterwarnings("ignore:.*of this run go to")
def test_two_runs_that_reach_their_first_evaluation_at_the_same_moment_share_no_file(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, others = "lightning_ding.callbacks.best_checkpoint.save_checkpoint", []

    def save_after_another_run(*args: Any) -> None:
        monkeypatch.setattr(name, save_checkpoint)
        others.append(run(make_trainer, small, max_env_step=64))
        save_checkpoint(*args)

    monkeypatch.setattr(name, save_after_another_run)
    first = run(make_trainer, small)
    folder = tmp_path / "checkpoints"
    assert first == (folder, folder)
    assert others == [(folder / "v1", folder / "v1")]
    assert (env_step(folder / "last.ckpt"), env_step(folder / "v1" / "last.ckpt")) == (32, 64)
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last-32", "last.ckpt", "v1"]


def test_run_without_a_checkpoint_releases_its_folder(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    class Fails(RunCheckpoint):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            assert FolderClaim.take(tmp_path) is None
            raise RuntimeError("before the first checkpoint")

    callbacks = [BestCheckpoint(tmp_path), Fails(tmp_path)]
    with pytest.raises(RuntimeError, match="before the first checkpoint"):
        fit(make_trainer(enable_checkpointing=True, callbacks=callbacks, limit_val_batches=0), small)
    assert list(tmp_path.iterdir()) == []


def test_folder_of_checkpoints_that_cannot_be_written_ends_a_run_before_its_first_round(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("a file in place of the folder")
    policy = DQNPolicy(small)
    with pytest.raises(
        UnwritableFolderError, match=r"checkpoints of this run cannot be written to .*checkpoints: .*; choose another"
    ):
        make_trainer(enable_checkpointing=True).fit(policy, ReplayDataModule("CartPole-v1", max_env_step=32))
    assert policy.progress.env_step == 0


def test_disk_that_is_full_at_the_start_ends_a_run_that_is_resumed(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_trainer, small)

    def refuse(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(UnwritableFolderError, match=r"No space left on device: '.*checkpoints'; choose another folder"):
        run(make_trainer, small, max_env_step=64, ckpt_path="last")


def test_one_of_two_runs_gets_the_claim_until_it_is_released(tmp_path: Path) -> None:
    first = FolderClaim.take(tmp_path)
    assert first is not None
    assert FolderClaim.take(tmp_path) is None
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = FolderClaim.take(tmp_path)
    assert second is not None
    second.release()


def test_killed_run_leaves_no_claim(tmp_path: Path) -> None:
    killed = FolderClaim.take(tmp_path)
    assert killed is not None
    killed._file.close()  # what the kernel does
    assert (tmp_path / CLAIM_FILE).exists()
    claim = FolderClaim.take(tmp_path)
    assert claim is not None
    claim.release()


def test_claim_of_a_file_that_its_holder_removes_in_this_moment_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = FolderClaim.take(tmp_path)
    assert held is not None
    opened: Any = Path.open

    def open_then_lose(path: Path, *args: str) -> Any:
        file = opened(path, *args)
        held.release()  # after this run opened the file, and before it locks it
        return file

    monkeypatch.setattr(Path, "open", open_then_lose)
    claim = FolderClaim.take(tmp_path)
    assert claim is not None
    assert FolderClaim.take(tmp_path) is None
    claim.release()
