"""Trainer flags that cannot work with these policies, each with what to use instead."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher  # 2.6 has no public name for it


def check_trainer_flags(trainer: Trainer) -> None:
    """Raise for the first flag that cannot work.

    Raises:
        ValueError: Naming the flag, what it was, and what to use.
    """
    strategy = trainer.strategy
    is_spawned = type(strategy.launcher) is _MultiProcessingLauncher
    overfit_batches = trainer.overfit_batches  # type: ignore[attr-defined]  # set by a connector
    refused = {
        "accumulate_grad_batches": (
            trainer.accumulate_grad_batches not in (1, None),
            trainer.accumulate_grad_batches,
            "an update is one minibatch; raise learn.batch_size in the policy's config",
        ),
        "gradient_clip_val": (
            trainer.gradient_clip_val is not None,
            trainer.gradient_clip_val,
            "set learn.grad_clip_norm in the policy's config",
        ),
        "max_steps": (
            trainer.max_steps != -1 and not trainer.fast_dev_run,  # type: ignore[attr-defined]
            trainer.max_steps,
            "it counts steps of all optimizers together; set max_env_step or max_train_iter on the datamodule",
        ),
        "overfit_batches": (
            overfit_batches != 0,
            overfit_batches,
            "there is no fixed data set to overfit; leave it at 0",
        ),
        "precision": (
            trainer.precision not in ("32-true", "bf16-mixed"),
            trainer.precision,
            'data and losses are 32-bit; use precision="32-true" or "bf16-mixed"',
        ),
        "limit_train_batches": (
            trainer.limit_train_batches == 0,
            0,
            "it would end without training; call validate or test instead of fit",
        ),
        "num_sanity_val_steps": (
            trainer.num_sanity_val_steps not in (0, 2),  # 2 is Lightning's default
            trainer.num_sanity_val_steps,
            "it would evaluate the untrained policy at full length; leave it out",
        ),
        "strategy": (
            not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)) or is_spawned,
            type(strategy).__name__,
            'use strategy="ddp": gradients are averaged for whole replicas, and spawned ones give no policy back',
        ),
    }
    for flag, (is_refused, value, advice) in refused.items():
        if is_refused:
            raise ValueError(f"Trainer({flag}={value!r}) cannot work with a reinforcement-learning policy: {advice}")
