"""Every callback of Lightning works, or raises an error that names the alternative."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    BasePredictionWriter,
    BatchSizeFinder,
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    OnExceptionCheckpoint,
    ProgressBar,
    RichModelSummary,
    RichProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)

from tests.trainer.cases import STEPS, Case, Run, callback, cases, check_case, weights


class Frozen(BaseFinetuning):
    """Freezes the network until the second epoch."""

    before: torch.Tensor
    after_one_epoch: torch.Tensor

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.model.encoder)
        self.before = weights(pl_module.model.encoder).clone()

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.after_one_epoch = weights(pl_module.model.encoder).clone()
            self.make_trainable(pl_module.model.encoder)


def is_averaged(run: Run) -> bool:
    """Whether policy and last checkpoint have the averaged weights."""
    average = run.given[0]._average_model.module.model  # type: ignore[attr-defined]
    saved = torch.load(next(run.folder.rglob("last.ckpt")), weights_only=True)["state_dict"]
    mine = {name.removeprefix("model."): value for name, value in saved.items() if name.startswith("model.")}
    same = [torch.equal(value, mine[name]) for name, value in average.state_dict().items()]
    return all(same) and torch.equal(weights(run.policy.model), weights(average))


class Writer(BasePredictionWriter): ...


class NoBar(ProgressBar):
    def disable(self) -> None: ...


CALLBACKS = [
    callback(Callback, lambda _: Callback(), "any subclass"),
    callback(
        BaseFinetuning,
        lambda _: Frozen(),
        "freeze and unfreeze parts of `policy.model`",
        check=lambda run: (
            torch.equal(run.given[0].before, run.given[0].after_one_epoch)
            and not torch.equal(run.given[0].before, weights(run.policy.model.encoder))
        ),
    ),
    callback(
        BackboneFinetuning,
        lambda _: BackboneFinetuning(),
        "a subclass of `BaseFinetuning`",
        "BackboneFinetuning .*BaseFinetuning",
    ),
    callback(
        BasePredictionWriter, lambda _: Writer("batch"), "`policy(observations)`", r"Writer .*policy\(observations\)"
    ),
    callback(
        BatchSizeFinder,
        lambda _: BatchSizeFinder(),
        "`learn.batch_size` of the policy",
        "BatchSizeFinder .*learn.batch_size",
    ),
    callback(
        Checkpoint,
        lambda _: Checkpoint(),
        "`RunCheckpoint` is added as well",
        check=lambda run: "last.ckpt" in run.files("*.ckpt"),
        flags={"enable_checkpointing": True},
    ),
    callback(
        DeviceStatsMonitor,
        lambda _: DeviceStatsMonitor(True),
        "over env steps",
        check=lambda run: run.logged_at("DeviceStats") == STEPS,
        flags={"log_every_n_steps": 1},
    ),
    callback(
        EarlyStopping,
        lambda _: EarlyStopping("eval/return_mean", mode="max", patience=1),
        '`monitor="eval/return_mean", mode="max"`',
    ),
    callback(
        GradientAccumulationScheduler,
        lambda _: GradientAccumulationScheduler({0: 2}),
        "`learn.batch_size` of the policy",
        "GradientAccumulationScheduler .*learn.batch_size",
    ),
    callback(
        LambdaCallback,
        lambda folder: LambdaCallback(on_before_zero_grad=lambda *_: (folder / "heard").touch()),
        "any hook; those of an update cost 0.1 ms each",
        check=lambda run: run.files("heard") == ["heard"],
    ),
    callback(
        LearningRateFinder,
        lambda _: LearningRateFinder(),
        "`learn.learning_rate` of the policy",
        "LearningRateFinder .*learn.learning_rate",
    ),
    callback(
        LearningRateMonitor,
        lambda _: LearningRateMonitor("step"),
        "over env steps; `learn/cur_lr` is logged anyway",
        check=lambda run: run.logged_at("lr-") == {24, 32, 40, 48},
        flags={"log_every_n_steps": 1},
    ),
    callback(
        ModelCheckpoint,
        lambda folder: ModelCheckpoint(folder, save_top_k=-1),
        "`{step}` in names is env steps",
        text="ModelCheckpoint()",
        check=lambda run: run.files("epoch*.ckpt") == ["epoch=0-step=32.ckpt", "epoch=1-step=48.ckpt"],
        flags={"enable_checkpointing": True},
    ),
    callback(
        ModelCheckpoint,
        lambda folder: ModelCheckpoint(folder, monitor="eval/return_mean", mode="max", save_last=True),
        "every metric of the run",
        text='ModelCheckpoint(monitor="eval/return_mean", mode="max")',
        check=lambda run: len(run.files("epoch*.ckpt")) == 1,
        flags={"enable_checkpointing": True},
    ),
    callback(
        ModelCheckpoint,
        lambda folder: ModelCheckpoint(folder, save_top_k=-1),
        "without evaluations as well",
        text="ModelCheckpoint(save_top_k=-1)",
        check=lambda run: run.files("epoch*.ckpt") == ["epoch=0-step=32.ckpt", "epoch=1-step=48.ckpt"],
        flags={"enable_checkpointing": True, "limit_val_batches": 0},
    ),
    callback(
        ModelCheckpoint,
        lambda _: ModelCheckpoint(every_n_train_steps=4),
        "`every_n_epochs`, with `rounds_per_epoch` of the datamodule, or its `checkpoint_every`",
        "every_n_train_steps=4.*every_n_epochs",
        text="ModelCheckpoint(every_n_train_steps=4)",
        flags={"enable_checkpointing": True},
    ),
    callback(
        ModelCheckpoint,
        lambda _: ModelCheckpoint(train_time_interval=timedelta(0)),
        "`every_n_epochs`, with `rounds_per_epoch` of the datamodule, or its `checkpoint_every`",
        "train_time_interval=.*every_n_epochs",
        text="ModelCheckpoint(train_time_interval=...)",
        flags={"enable_checkpointing": True},
    ),
    callback(
        ModelPruning,
        lambda _: ModelPruning("l1_unstructured", amount=0.5),
        "`torch.nn.utils.prune` on the trained `policy.model`",
        "ModelPruning .*torch.nn.utils.prune",
    ),
    callback(
        ModelSummary, lambda _: ModelSummary(2), "networks and target networks", flags={"enable_model_summary": True}
    ),
    callback(
        OnExceptionCheckpoint,
        lambda folder: OnExceptionCheckpoint(folder),
        'resume with `ckpt_path="last"`: the run writes `last.ckpt` itself',
        "OnExceptionCheckpoint .*ckpt_path='last'",
        flags={"enable_checkpointing": True},
    ),
    callback(
        ProgressBar,
        lambda _: NoBar(),
        "a subclass replaces the default progress bar",
        flags={"enable_progress_bar": True},
        check=lambda run: "env steps" not in run.printed,
    ),
    callback(
        RichModelSummary,
        lambda _: RichModelSummary(),
        "networks and target networks",
        flags={"enable_model_summary": True},
    ),
    callback(
        RichProgressBar, lambda _: RichProgressBar(refresh_rate=2), "counts rounds", flags={"enable_progress_bar": True}
    ),
    callback(
        StochasticWeightAveraging,
        lambda _: StochasticWeightAveraging(0.1),
        "`WeightAveraging` or `EMAWeightAveraging`",
        "StochasticWeightAveraging .*EMAWeightAveraging",
    ),
    callback(
        SpikeDetection, lambda _: SpikeDetection(), "`on_non_finite` of the policy", "SpikeDetection .*on_non_finite"
    ),
    callback(
        ThroughputMonitor,
        lambda _: ThroughputMonitor(len, window_size=3),
        "over env steps; a batch is a round",
        check=lambda run: run.logged_at("train") == STEPS,
        flags={"log_every_n_steps": 1},
    ),
    callback(Timer, lambda _: Timer(timedelta(0)), "as `max_time`", check=lambda run: run.seen.rounds == 0),
    callback(
        TQDMProgressBar, lambda _: TQDMProgressBar(refresh_rate=2), "counts rounds", flags={"enable_progress_bar": True}
    ),
    callback(
        EMAWeightAveraging,
        lambda _: EMAWeightAveraging(),
        "evaluations and checkpoints have the averaged weights",
        check=is_averaged,
        flags={"enable_checkpointing": True},
    ),
    callback(
        WeightAveraging,
        lambda _: WeightAveraging(),
        "evaluations and checkpoints have the averaged weights",
        check=is_averaged,
        flags={"enable_checkpointing": True},
    ),
]


@cases(CALLBACKS)
@pytest.mark.filterwarnings("ignore")
def test_callback_works_or_is_refused_by_name_with_what_to_use(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_case(case, tmp_path, capfd)


def test_table_has_every_callback_of_this_version_of_lightning() -> None:
    assert set(callbacks.__all__) == {case.of for case in CALLBACKS}
