from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_ding.callbacks import BestCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.datamodules.run_envs import Evaluation
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]
FilesOfAtMost = Callable[[int], AbstractContextManager[None]]


class Scored(Callback):
    """Record the weights of every evaluation, and replace its score by the next given one."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.weights.append({name: tensor.clone() for name, tensor in pl_module.state_dict().items()})

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        trainer.callback_metrics["score"] = torch.tensor(self.scores[len(self.weights) - 1])


def train(
    make_trainer: MakeTrainer, small: Config, *callbacks: Callback, epochs: int = 4, **flags: Any
) -> tuple[Trainer, DQNPolicy, ReplayDataModule]:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2)
    trainer = make_trainer(enable_checkpointing=True, callbacks=list(callbacks), max_epochs=epochs, **flags)
    trainer.fit(policy, datamodule)
    return trainer, policy, datamodule


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((1.0, 5.0, 3.0, 4.0), 1),
        ((-5.0, -5.0, -5.0, -6.0), 0),
        ((1.0, 2.0, 3.0, 4.0), 3),
        ((0.0, math.nan, 1.0, 0.0), 2),
    ],
)
def test_best_file_holds_exactly_the_weights_that_got_the_first_best_score(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, scores: tuple[float, ...], best: int
) -> None:
    scored = Scored(*scores)
    train(make_trainer, small, scored, BestCheckpoint(tmp_path, monitor="score"))
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    equal = [all(torch.equal(saved[name], weights[name]) for name in saved) for weights in scored.weights]
    assert equal == [number == best for number in range(4)]


def test_callback_tells_the_best_score_and_its_file(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = BestCheckpoint(tmp_path / "here", "winner", monitor="score")
    train(make_trainer, small, Scored(1.0, 5.0, 3.0, 4.0), callback)
    assert callback.best_model_score == 5
    assert Path(callback.best_model_path) == tmp_path / "here" / "winner.ckpt"
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["winner.ckpt"]


def test_score_is_the_mean_return_of_the_evaluation(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    callback = BestCheckpoint(tmp_path)
    _, _, datamodule = train(make_trainer, small, callback)
    again = DQNPolicy.load_from_checkpoint(tmp_path / "best.ckpt", weights_only=True)
    (scores,) = make_trainer().validate(again, datamodule, verbose=False)
    assert callback.best_model_score == scores["eval/return_mean"]


def test_trainer_tests_the_best_checkpoint_by_its_name(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    scored = Scored(1.0, 5.0, 3.0, 4.0)
    trainer, policy, datamodule = train(make_trainer, small, scored, BestCheckpoint(tmp_path, monitor="score"))
    trainer.test(policy, datamodule, ckpt_path="best", verbose=False)
    name = "model.encoder.layers.0.weight"
    assert torch.equal(policy.state_dict()[name], scored.weights[1][name])


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_best_policy_is_kept_and_found_when_the_user_adds_a_model_checkpoint(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    means = iter([1.0, 5.0, 3.0, 4.0, 0.0])  # the last one is of the test
    results = ({"episode_return": torch.tensor([mean]), "episode_length": torch.tensor([9.0])} for mean in means)
    monkeypatch.setattr(Evaluation, "run", lambda _: next(results))
    scored, own = Scored(*[0.0] * 4), ModelCheckpoint(tmp_path / "mine", save_top_k=-1)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        trainer, policy, datamodule = train(make_trainer, small, scored, own)
    name, best = "model.encoder.layers.0.weight", tmp_path / "checkpoints" / "best.ckpt"
    assert caplog.messages[-1].endswith(f"best return 5.000, checkpoint {best}")
    assert getattr(trainer.checkpoint_callback, "best_model_path", None) == str(best)
    trainer.test(policy, datamodule, ckpt_path="best", verbose=False)
    assert torch.equal(policy.state_dict()[name], scored.weights[1][name])


def test_run_names_a_deleted_file_as_deleted_when_the_best_policy_could_not_be_written(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, files_of_at_most: FilesOfAtMost
) -> None:
    class DeletedThenFull(FullDisk):
        def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
            (tmp_path / "best.ckpt").unlink(missing_ok=True)
            super().on_validation_end(trainer, pl_module)

    callback = DeletedThenFull(tmp_path, files_of_at_most, {1})
    with pytest.raises(OSError, match=r"could not be written .*the last complete one was deleted: .*best\.ckpt"):
        train(make_trainer, small, Scored(1.0, 5.0), callback, epochs=2)


def test_resumed_run_keeps_its_best_score(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, Scored(1.0, 5.0), BestCheckpoint(tmp_path, monitor="score"), epochs=2)
    file = tmp_path / "best.ckpt"
    best = file.read_bytes()
    resumed = make_trainer(
        enable_checkpointing=True, max_epochs=4, callbacks=[Scored(3.0, 4.0), BestCheckpoint(tmp_path, monitor="score")]
    )
    resumed.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2), ckpt_path=file)
    assert resumed.current_epoch == 4
    assert file.read_bytes() == best


def test_missing_metric_is_named_with_the_available_ones(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    with pytest.raises(
        KeyError, match=r"monitor must be a logged metric, one of .*eval/return_mean.*, got 'eval/retrn'"
    ):
        train(make_trainer, small, BestCheckpoint(tmp_path, monitor="eval/retrn"))


def test_evaluation_outside_a_fit_writes_nothing(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[BestCheckpoint(tmp_path / "here")])
    trainer.validate(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2), verbose=False)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_fast_dev_run_writes_nothing(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    train(make_trainer, small, BestCheckpoint(tmp_path), fast_dev_run=True)
    assert not list(tmp_path.rglob("*.ckpt"))


class FullDisk(BestCheckpoint):
    """Lets no file have more than some kilobytes in some evaluations."""

    def __init__(self, folder: Path, limited: Any, full_in: set[int]) -> None:
        super().__init__(folder, monitor="score")
        self.limited, self.full_in, self.evaluations = limited, full_in, 0

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        with self.limited(2_000 if self.evaluations in self.full_in else 10**9):
            super().on_validation_end(trainer, pl_module)
        self.evaluations += 1


def test_full_disk_leaves_the_best_file_of_before_and_the_next_better_policy_is_written(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    files_of_at_most: FilesOfAtMost,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "here"
    scored, callback = Scored(1.0, 5.0, 3.0, 2.0), FullDisk(folder, files_of_at_most, {1})
    with caplog.at_level(logging.ERROR, logger="lightning_ding"):
        train(make_trainer, small, scored, callback)
    saved = torch.load(folder / "best.ckpt", weights_only=True)
    name = "model.encoder.layers.0.weight"
    assert torch.equal(saved["state_dict"][name], scored.weights[2][name])  # 5 is gone, and 3 is more than 1
    assert callback.best_model_score == 3
    assert [file.name for file in folder.iterdir()] == ["best.ckpt"]
    (record,) = caplog.records
    assert "the best checkpoint of env step 48 could not be written" in record.getMessage()


def test_run_whose_best_policy_could_not_be_written_ends_with_an_error(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, files_of_at_most: FilesOfAtMost
) -> None:
    scored, callback = Scored(1.0, 5.0, 0.5, 0.5), FullDisk(tmp_path, files_of_at_most, {1})
    with pytest.raises(
        OSError, match=r"best checkpoint of this run could not be written .*the last complete one is .*best\.ckpt"
    ):
        train(make_trainer, small, scored, callback)
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)
    name = "model.encoder.layers.0.weight"
    assert torch.equal(saved["state_dict"][name], scored.weights[0][name])
