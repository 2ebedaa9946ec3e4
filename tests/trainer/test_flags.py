"""Every argument of Lightning's Trainer works, or raises an error that names the alternative."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from tests.trainer.cases import ROUNDS, Case, cases, check_case, flag, only_checked

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
    flag("callbacks", None, "the default callbacks are added"),
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
        "at least this many epochs, even if the budget of the datamodule is spent earlier",
        check=lambda run: run.seen.rounds == 3 * ROUNDS,
        flags={"max_epochs": 4},
    ),
    flag("max_steps", 10, "`max_env_step` or `max_train_iter` of the datamodule", "max_steps=10.*max_train_iter"),
    flag("min_steps", 10, "`min_epochs`", "min_steps=10.*min_epochs"),
    flag(
        "max_time",
        timedelta(0),
        "the run ends after that time",
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
        "applies to `validate` and `test`",
        call=lambda trainer, *run: trainer.validate(*run, verbose=False),
        check=lambda run: run.seen.evaluations == [0],
    ),
    flag("use_distributed_sampler", False, "no effect: envs and buffers have no sampler"),
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


@cases(FLAGS)
@pytest.mark.filterwarnings("ignore")
def test_argument_of_the_trainer_works_or_is_refused_by_name_with_what_to_use(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_case(case, tmp_path, capfd)


def test_table_has_every_argument_of_the_trainer() -> None:
    assert set(inspect.signature(Trainer.__init__).parameters) - {"self"} == {case.of for case in FLAGS}
