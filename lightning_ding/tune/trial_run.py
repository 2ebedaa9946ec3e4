"""The training run of one trial: its settings, its evaluations, and whether it ends early."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import yaml
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.stop import stop_run
from lightning_ding.config import deep_merge, require
from lightning_ding.entry.lightning_cli import given_settings, make_run
from lightning_ding.policy import Policy
from lightning_ding.tune.config import nested
from lightning_ding.utils.protocols import return_text

if TYPE_CHECKING:
    from optuna.trial import Trial

QUIET = {"enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
"""Flags of a trial's Trainer that the settings do not contain."""


class RunMaker:
    """Make the policy, the datamodule and the Trainer of each trial. The settings are checked once, here.

    Args:
        settings: The content of a config file of ``fit``, or the options of ``fit``.

    Raises:
        ValueError: If an option is unknown or its value is not allowed, the run has no limit, or it has several ranks.
    """

    def __init__(self, settings: Any) -> None:
        self._cli = make_run(settings)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*Dump of a value that does not round-trip")
            self.settings = given_settings(self._cli)
        policy: Policy[Any] = self._cli.model
        self.config = policy.config
        self.budget: int | None = self._cli.datamodule.max_env_step or self._cli.datamodule.max_train_iter
        allowed = "set, or data.max_train_iter: each trial needs an end"
        require(self.budget is not None, "data.max_env_step", allowed, None)
        ranks = self._cli.trainer.world_size
        allowed = "1 and trainer.num_nodes too: start the command several times with the same folder instead"
        require(ranks == 1, "trainer.devices", allowed, ranks)

    def make(self, settings: Mapping[str, Any]) -> tuple[Any, Any, Trainer]:
        """Return the policy, the datamodule and the Trainer of a trial, and seed all random numbers."""
        lightning.seed_everything(settings["seed_everything"], workers=True, verbose=False)
        self._cli.config = self._cli.parser.parse_object(dict(settings))
        self._cli.instantiate_classes()
        return self._cli.model, self._cli.datamodule, self._cli.trainer

    def trial_settings(self, values: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """Return the settings of a trial, which writes its logs to ``folder``, and write them there as YAML.

        Args:
            values: Values of config fields of the policy by dotted name.
            seed: Seed of envs, exploration and learning, >= 0.
            folder: Folder of the trial.
        """
        given = self.settings.get("trainer", {})
        flags = {**QUIET, **given, "default_root_dir": str(folder)}
        if "logger" in given:
            loggers = given["logger"]
            is_list = isinstance(loggers, list)
            flags["logger"] = [_moved(one, folder) for one in loggers] if is_list else _moved(loggers, folder)
        changes = {"seed_everything": seed, "data": {"seed": seed}, "model": {"cfg": nested(values)}, "trainer": flags}
        settings = deep_merge(self.settings, changes)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trial.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        return settings


def _moved(logger: Any, folder: Path) -> Any:
    """Return the settings of a logger that writes to a trial's folder, if its class has a ``save_dir``."""
    if not isinstance(logger, Mapping) or "class_path" not in logger:
        return logger
    module, _, name = str(logger["class_path"]).rpartition(".")
    takes = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    return deep_merge(logger, {"init_args": {"save_dir": str(folder)}}) if "save_dir" in takes else dict(logger)


class TrialReporter(Callback):
    """Keep the evaluations of a trial, and end it early if the study's pruner says so.

    Optuna compares trials at equal steps, but trials with other batch sizes or update intervals evaluate at other env
    steps. An evaluation is therefore reported at the last of several evenly spaced env steps that it has passed.

    Args:
        trial: The trial; None only keeps the evaluations.
        reports: Number of these env steps in a run, >= 1.
    """

    def __init__(self, trial: Trial | None = None, reports: int = 1) -> None:
        self._trial, self._reports = trial, reports
        self._reported = 0
        self.returns: list[float] = []
        """Mean return of each evaluation."""
        self.is_pruned = False
        """Whether the trial ended early."""

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Report the mean return, and stop the run if it is not worth continuing."""
        progress = pl_module.progress
        value = float(trainer.callback_metrics["eval/return_mean"])
        self.returns.append(value)
        number = min(progress.position * self._reports // progress.budget, self._reports)
        if self._trial is None or number <= self._reported:
            return
        self._reported = number
        self._trial.report(value, number * progress.budget // self._reports)
        if number < self._reports and self._trial.should_prune():
            self.is_pruned = True
            stop_run(trainer, f"trial {self._trial.number} is pruned with a mean return of {return_text(value)}")


def run_trial(maker: RunMaker, settings: Mapping[str, Any], metric: str, reporter: TrialReporter) -> float:
    """Train with the settings of a trial, and return the mean return of its last or of its best evaluation.

    Raises:
        ValueError: If the run evaluates nothing.
        NonFiniteError: If the loss or its gradient is NaN or infinite.
    """
    policy, datamodule, trainer = maker.make(settings)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks.append(reporter)
    trainer.fit(policy, datamodule)
    require(bool(reporter.returns), "trainer.limit_val_batches", "such that a trial is evaluated", "no evaluation")
    return max(reporter.returns) if metric == "best" else reporter.returns[-1]
