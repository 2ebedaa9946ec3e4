"""What of Lightning cannot work with these policies, each with what to use instead; docs/lightning.md has the table."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BasePredictionWriter,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    SpikeDetection,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher  # 2.6 has no public name for it

from lightning_ding.policy.forked import is_forked

CHECKPOINT_TIMES = "Lightning counts no rounds and no time here; use every_n_epochs, and rounds_per_epoch of the data"

REFUSED_CALLBACKS: dict[type[Callback], str] = {
    BackboneFinetuning: "a policy has no backbone; subclass BaseFinetuning and freeze parts of policy.model",
    BasePredictionWriter: "there is no data set to predict on; call policy(observations), or trainer.test",
    BatchSizeFinder: "an update is one minibatch of the buffer; set learn.batch_size in the policy's config",
    GradientAccumulationScheduler: "an update is one minibatch; raise learn.batch_size in the policy's config",
    LearningRateFinder: "the loss of a few updates says nothing about the return; set learn.learning_rate in the "
    "policy's config and compare eval/return_mean",
    ModelPruning: "target networks would not be pruned; use torch.nn.utils.prune on the trained policy.model",
    OnExceptionCheckpoint: "the run's last.ckpt is there after an exception; continue with ckpt_path='last'",
    SpikeDetection: "the loss follows moving targets, and a batch is never seen again; see on_non_finite of the "
    "policy's config",
    StochasticWeightAveraging: "the policy steps its learning-rate schedules itself; use WeightAveraging or "
    "EMAWeightAveraging",
}


def check_trainer(trainer: Trainer) -> None:
    """Raise for the first callback, and in a fit for the first flag, that cannot work.

    Raises:
        ValueError: Naming the flag or callback, what it was, and what to use.
    """
    check_callbacks(trainer)
    if trainer.state.fn == "fit":
        check_trainer_flags(trainer)


def check_callbacks(trainer: Trainer) -> None:
    """Raise for the first callback that cannot work.

    Raises:
        ValueError: Naming the callback, and what to use.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        advice = next((REFUSED_CALLBACKS[kind] for kind in REFUSED_CALLBACKS if isinstance(callback, kind)), None)
        name = type(callback).__name__
        if isinstance(callback, OnExceptionCheckpoint):
            callbacks.remove(callback)  # it would hide this very error behind one of its own
        if isinstance(callback, ModelCheckpoint):
            for option, default in (("every_n_train_steps", 0), ("train_time_interval", None)):
                value = getattr(callback, f"_{option}", default)  # 2.6 has no public name for them
                if value != default:
                    name, advice = f"{name}({option}={value!r})", CHECKPOINT_TIMES
        if advice is not None:
            raise ValueError(f"{name} cannot work with a reinforcement-learning policy: {advice}")


def check_trainer_flags(trainer: Trainer) -> None:
    """Raise for the first flag that cannot work.

    Raises:
        ValueError: Naming the flag, what it was, and what to use.
    """
    for flag, (is_refused, value, advice) in {**_of_updates(trainer), **_of_loops(trainer)}.items():
        if is_refused:
            raise ValueError(f"Trainer({flag}={value!r}) cannot work with a reinforcement-learning policy: {advice}")


Refusals = dict[str, tuple[bool, Any, str]]


def _of_updates(trainer: Trainer) -> Refusals:
    strategy, checkpoint_io = trainer.strategy, trainer.strategy.checkpoint_io
    is_spawned = isinstance(strategy.launcher, _MultiProcessingLauncher) and not is_forked(trainer)
    return {
        "accumulate_grad_batches": (
            trainer.accumulate_grad_batches not in (1, None),
            trainer.accumulate_grad_batches,
            "an update is one minibatch; raise learn.batch_size in the policy's config",
        ),
        "gradient_clip_val": (
            trainer.gradient_clip_val is not None,
            trainer.gradient_clip_val,
            "set learn.grad_clip_norm or learn.grad_clip_value in the policy's config",
        ),
        "gradient_clip_algorithm": (
            trainer.gradient_clip_algorithm is not None,
            trainer.gradient_clip_algorithm and trainer.gradient_clip_algorithm.value,
            "set learn.grad_clip_norm or learn.grad_clip_value in the policy's config",
        ),
        "precision": (
            trainer.precision not in ("32-true", "bf16-mixed"),
            trainer.precision,
            'data and losses are 32-bit; use precision="32-true" or "bf16-mixed"',
        ),
        "plugins": (
            type(checkpoint_io) is not TorchCheckpointIO,
            type(checkpoint_io).__name__,
            "the run writes and checks its checkpoints itself; copy them from there",
        ),
        "strategy": (
            not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)) or is_spawned,
            f"{type(strategy).__name__} with spawned processes" if is_spawned else type(strategy).__name__,
            'use strategy="ddp", or "ddp_notebook" in a notebook: gradients are averaged for whole replicas, and '
            "spawned processes give no policy back",
        ),
    }


def _of_loops(trainer: Trainer) -> Refusals:
    flags: Any = trainer  # connectors set some of them
    fast = bool(flags.fast_dev_run)
    return {
        "max_steps": (
            trainer.max_steps != -1 and not fast,
            trainer.max_steps,
            "it counts steps of all optimizers together; set max_env_step or max_train_iter on the datamodule",
        ),
        "min_steps": (
            trainer.min_steps is not None,
            trainer.min_steps,
            "it counts steps of all optimizers together; use min_epochs",
        ),
        "overfit_batches": (
            flags.overfit_batches != 0,
            flags.overfit_batches,
            "there is no fixed data set to overfit; leave it at 0",
        ),
        "limit_train_batches": (
            trainer.limit_train_batches == 0,
            0,
            "it would end without training; call validate or test instead of fit",
        ),
        "limit_val_batches": (
            isinstance(trainer.limit_val_batches, float) and 0 < trainer.limit_val_batches < 1,
            trainer.limit_val_batches,
            "an evaluation is one batch; set n_evaluator_episode on the datamodule, or 0 for no evaluation",
        ),
        "limit_test_batches": (
            isinstance(trainer.limit_test_batches, float) and 0 < trainer.limit_test_batches < 1,
            trainer.limit_test_batches,
            "an evaluation is one batch; set n_evaluator_episode on the datamodule, or 0 for no evaluation",
        ),
        "limit_predict_batches": (
            trainer.limit_predict_batches != 1.0 and not fast,
            trainer.limit_predict_batches,
            "there is no data set to predict on; call policy(observations), or trainer.test",
        ),
        "num_sanity_val_steps": (
            trainer.num_sanity_val_steps not in (0, 2),  # 2 is Lightning's default
            trainer.num_sanity_val_steps,
            "it would evaluate the untrained policy at full length; leave it out",
        ),
    }
