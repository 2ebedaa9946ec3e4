"""Every argument of Lightning's Trainer and every stock callback: it works, or is refused by name with what to use.

The table is that of docs/lightning.md; ``python tests/test_lightning.py`` prints it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, Trainer, callbacks
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
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.tuner.tuning import Tuner
from torch.utils.data import DataLoader

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs.toy import CountingEnv
from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.trainer_flags import check_trainer_flags

PAGE = Path(__file__).parents[1] / "docs" / "lightning.md"
CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [8], "dueling": False},
    "collect": {"n_sample": 8},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1}},
    "other": {"replay_buffer": {"replay_buffer_size": 100}},
}
ROUNDS, EPOCHS, ENV_STEPS = 2, 2, 48  # rounds of an epoch, epochs of the run, 16 + 2 * 2 * 8 env steps


class Notes(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, list[int | None]] = {}
        self.saved: list[str] = []

    name, version = "notes", 0

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for key in metrics:
            self.steps.setdefault(key, []).append(step)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        paths = [checkpoint_callback.last_model_path] if hasattr(checkpoint_callback, "last_model_path") else []
        paths += [checkpoint_callback.best_model_path] if hasattr(checkpoint_callback, "best_model_path") else []
        self.saved += [Path(path).name for path in paths if path]


class Seen(Callback):
    """Counts rounds, and evaluations by the rounds before them."""

    def __init__(self) -> None:
        self.rounds = 0
        self.evaluations: list[int] = []

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.rounds += 1

    def on_validation_end(self, *args: Any, **kwargs: Any) -> None:
        self.evaluations.append(self.rounds)


@dataclass
class Run:
    """A run that is over."""

    trainer: Any
    policy: Any
    seen: Seen
    notes: Notes
    given: list[Callback]
    folder: Path
    printed: str = ""

    def logged_at(self, prefix: str) -> set[int | None]:
        return {step for name, steps in self.notes.steps.items() if name.startswith(prefix) for step in steps}

    def files(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.folder.rglob(pattern))


@dataclass
class Case:
    """What a value does.

    Args:
        of: The argument of the Trainer, or the callback.
        value: What is given, as it stands in the table.
        note: What it does, or what to use instead.
        flags: Arguments of the Trainer.
        callback: Makes a callback.
        check: Whether it worked.
        refused: What the error says; None if it works.
        call: What is done; None for a fit.
        rounds: Of an epoch.
    """

    of: str
    value: str
    note: str
    flags: dict[str, Any] = field(default_factory=dict)
    callback: Callable[[Path], Callback] | None = None
    check: Callable[[Run], bool] = lambda run: run.seen.rounds == ROUNDS * EPOCHS
    refused: str | None = None
    call: Callable[[Trainer, DQNPolicy, ReplayDataModule], object] | None = None
    rounds: int = ROUNDS

    def row(self) -> str:
        return f"| `{self.value}` | {'works' if self.refused is None else 'refused'} | {self.note} |"


def flag(name: str, value: Any, note: str, refused: str | None = None, **more: Any) -> Case:
    flags = {name: value, **more.pop("flags", {})}
    return Case(name, more.pop("text", f"{name}={value!r}".replace("'", '"')), note, flags, refused=refused, **more)


def only_checked(name: str, value: Any, note: str, refused: str | None = None, **more: Any) -> Case:
    """Return a case that is too dear to run: what takes several processes has its own tests."""
    return flag(name, value, note, refused, call=lambda trainer, *_: check_trainer_flags(trainer), **more)


def callback(
    kind: type[Callback], make: Callable[[Path], Callback], note: str, refused: str | None = None, **more: Any
) -> Case:
    return Case(
        kind.__name__, more.pop("text", kind.__name__), note, more.pop("flags", {}), make, refused=refused, **more
    )


def weights(module: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


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


STEPS = {24, 32, 40, 48}  # env steps after each round

FLAGS = [
    flag("accelerator", "cpu", "as for any module"),
    only_checked("strategy", "ddp", "one process for each device", flags={"devices": 2}),
    only_checked("strategy", "ddp_find_unused_parameters_true", "as `ddp`", flags={"devices": 2}),
    only_checked(
        "strategy", "ddp_notebook", "forked processes; the policy gets the trained weights", flags={"devices": 2}
    ),
    only_checked("strategy", "ddp_fork", "as `ddp_notebook`", flags={"devices": 2}),
    only_checked(
        "strategy",
        "ddp_spawn",
        '`"ddp"`, in a notebook `"ddp_notebook"`',
        r"spawned.*ddp_notebook",
        flags={"devices": 2},
    ),
    flag("devices", 1, 'with `strategy="ddp"` any number'),
    flag("num_nodes", 1, 'with `strategy="ddp"` any number'),
    flag("precision", "32-true", "the default"),
    flag("precision", "bf16-mixed", "losses stay 32-bit"),
    flag("precision", "64-true", '`"32-true"` or `"bf16-mixed"`', "precision='64-true'.*bf16-mixed"),
    flag("precision", "bf16-true", '`"32-true"` or `"bf16-mixed"`', "precision='bf16-true'.*bf16-mixed"),
    flag("logger", False, "checkpoints go to `default_root_dir`"),
    flag("logger", True, "TensorBoard", check=lambda run: bool(run.files("events.*"))),
    flag("callbacks", None, "the run brings its own"),
    flag("fast_dev_run", True, "one round, one evaluation, no files", check=lambda run: run.seen.evaluations == [1]),
    flag(
        "fast_dev_run",
        3,
        "three rounds, one evaluation, no files",
        check=lambda run: run.seen.evaluations == [3],
        rounds=5,
    ),
    flag("max_epochs", 1, "rounds and an evaluation make an epoch", check=lambda run: run.seen.rounds == ROUNDS),
    flag("max_epochs", -1, "until the budget of the datamodule is spent"),
    flag(
        "min_epochs",
        3,
        "epochs that the budget does not cut",
        check=lambda run: run.seen.rounds == 3 * ROUNDS,
        flags={"max_epochs": 4},
    ),
    flag("max_steps", 10, "`max_env_step` or `max_train_iter` of the datamodule", "max_steps=10.*max_train_iter"),
    flag("min_steps", 10, "`min_epochs`", "min_steps=10.*min_epochs"),
    flag(
        "max_time",
        timedelta(0),
        "the run ends at that time",
        text='max_time="00:12:00:00"',
        check=lambda run: run.seen.rounds == 0,
    ),
    flag("limit_train_batches", 1, "rounds of an epoch", check=lambda run: run.seen.evaluations == [1, 2]),
    flag("limit_train_batches", 0.5, "share of an epoch's rounds", check=lambda run: run.seen.evaluations == [1, 2]),
    flag("limit_train_batches", 0, "`trainer.validate` or `trainer.test`", "limit_train_batches=0.*validate"),
    flag("limit_val_batches", 0, "no evaluation", check=lambda run: not run.seen.evaluations and run.seen.rounds == 4),
    flag("limit_val_batches", 1, "an evaluation is one batch", check=lambda run: run.seen.evaluations == [2, 4]),
    flag(
        "limit_val_batches",
        0.5,
        "`n_evaluator_episode` of the datamodule",
        "limit_val_batches=0.5.*n_evaluator_episode",
    ),
    flag("limit_test_batches", 1, "a test is one batch"),
    flag(
        "limit_test_batches",
        0.5,
        "`n_evaluator_episode` of the datamodule",
        "limit_test_batches=0.5.*n_evaluator_episode",
    ),
    flag("limit_predict_batches", 2, "`policy(observations)`", r"limit_predict_batches=2.*policy\(observations\)"),
    flag("overfit_batches", 1, "leave it out: there is no fixed data set", "overfit_batches=1.*no fixed data set"),
    flag(
        "val_check_interval", 0.5, "share of an epoch's rounds", check=lambda run: run.seen.evaluations == [1, 2, 3, 4]
    ),
    flag("val_check_interval", 1, "rounds between evaluations", check=lambda run: run.seen.evaluations == [1, 2, 3, 4]),
    flag(
        "val_check_interval",
        timedelta(0),
        "time between evaluations, and one at the end",
        text='val_check_interval="00:00:10:00"',
        check=lambda run: run.seen.evaluations == [1, 2, 3, 4],
    ),
    flag("check_val_every_n_epoch", 2, "epochs between evaluations", check=lambda run: run.seen.evaluations == [4]),
    flag(
        "check_val_every_n_epoch",
        None,
        "with `val_check_interval=3`: rounds over all epochs, and one evaluation at the end",
        flags={"val_check_interval": 3},
        check=lambda run: run.seen.evaluations == [3, 4],
    ),
    flag(
        "num_sanity_val_steps",
        2,
        "the default; there is no sanity check",
        check=lambda run: run.seen.evaluations == [2, 4],
    ),
    flag("num_sanity_val_steps", 5, "leave it out", "num_sanity_val_steps=5.*leave it out"),
    flag("log_every_n_steps", 1, "rounds", check=lambda run: run.logged_at("learn/") == {24, 32, 40, 48}),
    flag(
        "log_every_n_steps",
        50,
        "rounds, and before each evaluation",
        check=lambda run: run.logged_at("learn/") == {32, 48},
    ),
    flag(
        "enable_checkpointing",
        True,
        "`BestCheckpoint` and `RunCheckpoint`",
        check=lambda run: set(run.files("*.ckpt")) == {"best.ckpt", "last.ckpt", "run.ckpt"},
    ),
    flag("enable_checkpointing", False, "no checkpoints", check=lambda run: not run.files("*.ckpt")),
    flag("enable_progress_bar", True, "counts env steps", check=lambda run: "env steps" in run.printed),
    flag("enable_progress_bar", False, "no bar", check=lambda run: "env steps" not in run.printed),
    flag("enable_model_summary", True, "networks and target networks"),
    flag("enable_model_summary", False, "no summary"),
    flag(
        "accumulate_grad_batches", 2, "`learn.batch_size` of the policy", "accumulate_grad_batches=2.*learn.batch_size"
    ),
    flag(
        "gradient_clip_val",
        1.0,
        "`learn.grad_clip_norm` or `learn.grad_clip_value` of the policy",
        "gradient_clip_val=1.0.*grad_clip_norm",
    ),
    flag(
        "gradient_clip_algorithm",
        "value",
        "`learn.grad_clip_norm` or `learn.grad_clip_value` of the policy",
        "gradient_clip_algorithm='value'.*grad_clip_value",
    ),
    flag("deterministic", "warn", "as for any module"),
    flag("benchmark", False, "as for any module"),
    flag(
        "inference_mode",
        False,
        "of `validate` and `test`",
        call=lambda trainer, *run: trainer.validate(*run, verbose=False),
        check=lambda run: run.seen.evaluations == [0],
    ),
    flag("use_distributed_sampler", False, "either: envs and buffers have no sampler"),
    flag(
        "profiler",
        "simple",
        "times every update",
        check=lambda run: "optimizer_step" in str(run.trainer.profiler.summary()),
    ),
    flag("detect_anomaly", True, "as for any module"),
    flag(
        "barebones",
        True,
        "no logs, checkpoints, bar",
        flags={"logger": None, "enable_checkpointing": None, "enable_progress_bar": None, "enable_model_summary": None},
    ),
    flag("plugins", [LightningEnvironment()], "cluster environments", text="plugins=[LightningEnvironment()]"),
    flag(
        "plugins",
        [AsyncCheckpointIO()],
        "leave it out: runs write and check their checkpoints themselves",
        "plugins='AsyncCheckpointIO'.*itself",
        text="plugins=[AsyncCheckpointIO()]",
    ),
    flag("sync_batchnorm", True, "as for any module"),
    flag("reload_dataloaders_every_n_epochs", 1, "changes nothing", check=lambda run: run.seen.evaluations == [2, 4]),
    flag("default_root_dir", None, "where a run without a logger writes", text='default_root_dir="runs"', flags={}),
    flag("enable_autolog_hparams", False, "as for any module"),
    flag("model_registry", "team/name", "needs litmodels, as for any module"),
]

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
        "`RunCheckpoint` comes beside it",
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
        "`every_n_epochs`, with `rounds_per_epoch` of the datamodule",
        "every_n_train_steps=4.*every_n_epochs",
        text="ModelCheckpoint(every_n_train_steps=4)",
        flags={"enable_checkpointing": True},
    ),
    callback(
        ModelCheckpoint,
        lambda _: ModelCheckpoint(train_time_interval=timedelta(0)),
        "`every_n_epochs`, with `rounds_per_epoch` of the datamodule",
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
        '`ckpt_path="last"`: `last.ckpt` of the run is there',
        "OnExceptionCheckpoint .*ckpt_path='last'",
        flags={"enable_checkpointing": True},
    ),
    callback(
        ProgressBar,
        lambda _: NoBar(),
        "a subclass takes the place of ours",
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

CALLS = [
    Case("fit", "trainer.fit(policy, datamodule)", "collects and learns"),
    Case(
        "validate",
        "trainer.validate(policy, datamodule)",
        "an evaluation",
        call=lambda trainer, *run: trainer.validate(*run, verbose=False),
        check=lambda run: run.seen.evaluations == [0],
    ),
    Case(
        "test",
        "trainer.test(policy, datamodule)",
        "an evaluation of other episodes",
        call=lambda trainer, *run: trainer.test(*run, verbose=False),
        check=lambda run: "test/return_mean" in run.trainer.callback_metrics,
    ),
    Case(
        "predict",
        "trainer.predict(policy, datamodule)",
        "`trainer.test`, or `policy(observations)`",
        call=lambda trainer, *run: trainer.predict(*run),
        refused=r"trainer.predict .*trainer.test .*policy\(observations\)",
    ),
    Case(
        "predict",
        "trainer.predict(policy, DataLoader(observations))",
        "greedy actions",
        call=lambda trainer, policy, data: trainer.predict(built(policy), DataLoader(cast(Any, torch.zeros(4, 3)), 2)),
        check=lambda run: True,
    ),
    Case(
        "lr_find",
        "Tuner(trainer).lr_find(policy, datamodule=datamodule)",
        "`learn.learning_rate` of the policy",
        call=lambda trainer, policy, data: Tuner(trainer).lr_find(policy, datamodule=data),
        refused="LearningRateFinder .*learn.learning_rate",
    ),
    Case(
        "scale_batch_size",
        "Tuner(trainer).scale_batch_size(policy, datamodule=datamodule)",
        "`learn.batch_size` of the policy",
        call=lambda trainer, policy, data: Tuner(trainer).scale_batch_size(policy, datamodule=data),
        refused="BatchSizeFinder .*learn.batch_size",
    ),
]


def built(policy: DQNPolicy) -> DQNPolicy:
    env = CountingEnv()
    policy.build(env.observation_space, env.action_space)
    return policy


def run(case: Case, folder: Path) -> Run:
    """Do what a case says on a tiny env."""
    seen, notes = Seen(), Notes()
    given = [] if case.callback is None else [case.callback(folder)]
    flags: dict[str, Any] = {"accelerator": "cpu", "logger": notes, "default_root_dir": folder, "max_epochs": EPOCHS}
    flags |= {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    flags |= case.flags
    if flags["default_root_dir"] is None:
        flags["default_root_dir"] = folder
    trainer = Trainer(**{"callbacks": [*given, seen], **flags})
    if "callbacks" in flags:
        trainer.callbacks.append(seen)  # type: ignore[attr-defined]
    policy = DQNPolicy(CONFIG)
    data = ReplayDataModule(
        partial(CountingEnv, lengths=(3,)), num_envs=2, rounds_per_epoch=case.rounds, max_env_step=ENV_STEPS
    )
    (case.call or Trainer.fit)(trainer, policy, data)
    return Run(trainer, policy, seen, notes, given, folder)


def cases(table: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table, ids=[case.value for case in table])


@cases([*FLAGS, *CALLBACKS, *CALLS])
@pytest.mark.filterwarnings("ignore")
def test_every_argument_and_callback_works_or_is_refused_by_name_with_what_to_use(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if case.refused is not None:
        with pytest.raises(ValueError, match=case.refused):
            run(case, tmp_path)
        return
    done = run(case, tmp_path)
    done.printed = capfd.readouterr().out
    assert "strategy" in case.flags or case.check(done), (
        done.seen.rounds,
        done.seen.evaluations,
        done.notes.steps,
    )


def test_table_has_every_argument_of_the_trainer_and_every_callback_of_this_version_of_lightning() -> None:
    assert set(inspect.signature(Trainer.__init__).parameters) - {"self"} == {case.of for case in FLAGS}
    assert set(callbacks.__all__) == {case.of for case in CALLBACKS}


def test_page_shows_the_table() -> None:
    shown = re.findall(r"^\| `.*\|$", PAGE.read_text(), re.MULTILINE)
    assert shown == [case.row() for case in [*FLAGS, *CALLBACKS, *CALLS]]


def test_loggers_are_told_of_every_checkpoint(tmp_path: Path) -> None:
    done = run(Case("", "", "", {"enable_checkpointing": True}), tmp_path)
    assert done.notes.saved == ["best.ckpt", "last.ckpt", "last.ckpt"]


if __name__ == "__main__":
    for table in (FLAGS, CALLBACKS, CALLS):
        print("\n".join(case.row() for case in table), "\n")
