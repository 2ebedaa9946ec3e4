"""Lightning's Trainer: flags and callbacks that cannot work, hooks that can be skipped, and forked ranks.

docs/lightning.md has the table of flags and callbacks.

Inside a fit, ``manual_backward`` and a wrapped optimizer's ``step`` call six hooks of every callback and of the module,
in most runs without one of them being there. When nothing implements them, the backward and the step are done directly
and only ``global_step`` is counted, which no public method of Lightning does. With the hooks W1 takes 25 % longer.

With ``strategy="ddp_notebook"``, Lightning 2.6 saves ``state_dict()`` of the module in rank zero when a fit is over,
and loads it in the process that called ``fit``. The network may not exist there yet, because the ranks make it from the
env's spaces, and the counters are still at 0. The state of a policy in such a rank therefore holds its config and
counters as well.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
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
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from lightning_ding.policy.base.spaces import no_network
from lightning_ding.utils.private_api import checkpoint_option, starts_processes
from lightning_ding.utils.protocols import HasSpaces, run_data

CHECKPOINT_DEFAULTS: dict[str, Any] = {"every_n_train_steps": 0, "train_time_interval": None}
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


def prepare_trainer(trainer: Trainer) -> list[Callback]:
    """Refuse callbacks, and in a fit flags, that cannot work; return the callbacks that the datamodule needs.

    Raises:
        ValueError: Naming the flag or callback, what it was, and what to use.
    """
    check_callbacks(trainer)
    if trainer.state.fn == "fit":
        check_trainer_flags(trainer)
    connected: Any = trainer  # connectors set some of its attributes
    if connected.fast_dev_run:
        trainer.fit_loop.epoch_loop.max_steps = -1  # it counts rounds, each of which makes several steps
    if type(connected.profiler) is PassThroughProfiler:
        connected.profiler = SilentProfiler()
    step: Any = type(trainer.lightning_module).training_step
    if inspect.isfunction(step):
        step.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]  # Lightning reads it in each round
    return run_data(trainer).default_callbacks(trainer)


class SilentProfiler(PassThroughProfiler):
    """Lightning's default profiler, without a generator for each of the 23 actions of a round."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a context manager that does nothing."""
        return _NOTHING


_NOTHING = nullcontext()


def check_callbacks(trainer: Trainer) -> None:
    """Raise for the first callback that cannot work.

    Raises:
        ValueError: Naming the callback, and what to use.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, OnExceptionCheckpoint):
            callbacks.remove(callback)  # it would replace this error by another one
        refused: dict[str, str] = {}
        for kind, advice in REFUSED_CALLBACKS.items():
            if isinstance(callback, kind):
                refused[type(callback).__name__] = advice
        for option, default in CHECKPOINT_DEFAULTS.items() if isinstance(callback, ModelCheckpoint) else ():
            value = checkpoint_option(callback, option, default)
            if value != default:
                refused[f"{type(callback).__name__}({option}={value!r})"] = CHECKPOINT_TIMES
        for name, advice in refused.items():
            raise ValueError(f"{name} cannot work with a reinforcement-learning policy: {advice}")


_CLIPPING = "set learn.grad_clip_norm or learn.grad_clip_value in the policy's config"
_STEPS = "it counts steps of all optimizers together"
_EVALUATION = "an evaluation is one batch; set n_evaluator_episode on the datamodule, or 0 for no evaluation"
REFUSED_FLAGS = {
    "accumulate_grad_batches": "an update is one minibatch; raise learn.batch_size in the policy's config",
    "gradient_clip_val": _CLIPPING,
    "gradient_clip_algorithm": _CLIPPING,
    "precision": 'data and losses are 32-bit; use precision="32-true" or "bf16-mixed"',
    "plugins": "the run writes and checks its checkpoints itself; copy them from there",
    "strategy": 'use strategy="ddp", or "ddp_notebook" in a notebook: gradients are averaged for whole replicas, and '
    "spawned processes give no policy back",
    "max_steps": f"{_STEPS}; set max_env_step or max_train_iter on the datamodule",
    "min_steps": f"{_STEPS}; use min_epochs",
    "overfit_batches": "there is no fixed data set to overfit; leave it at 0",
    "limit_train_batches": "it would end without training; call validate or test instead of fit",
    "limit_val_batches": _EVALUATION,
    "limit_test_batches": _EVALUATION,
    "limit_predict_batches": "there is no data set to predict on; call policy(observations), or trainer.test",
    "num_sanity_val_steps": "it would evaluate the untrained policy at full length; leave it out",
}


def check_trainer_flags(trainer: Trainer) -> None:
    """Raise for the first flag that cannot work.

    Raises:
        ValueError: Naming the flag, what it was, and what to use.
    """
    flags: Any = trainer  # connectors set some of them
    strategy, checkpoint_io = trainer.strategy, type(trainer.strategy.checkpoint_io)
    is_spawned = starts_processes(strategy.launcher) and not is_forked(trainer)
    is_strategy = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)) and not is_spawned
    algorithm = trainer.gradient_clip_algorithm and trainer.gradient_clip_algorithm.value
    fast, val, test = bool(flags.fast_dev_run), flags.limit_val_batches, flags.limit_test_batches
    sanity_steps = trainer.num_sanity_val_steps
    values: dict[str, tuple[bool, Any]] = {
        "accumulate_grad_batches": (trainer.accumulate_grad_batches not in (1, None), trainer.accumulate_grad_batches),
        "gradient_clip_val": (trainer.gradient_clip_val is not None, trainer.gradient_clip_val),
        "gradient_clip_algorithm": (algorithm is not None, algorithm),
        "precision": (trainer.precision not in ("32-true", "bf16-mixed"), trainer.precision),
        "plugins": (checkpoint_io is not TorchCheckpointIO, checkpoint_io.__name__),
        "strategy": (not is_strategy, f"{type(strategy).__name__}{' with spawned processes' if is_spawned else ''}"),
        "max_steps": (trainer.max_steps != -1 and not fast, trainer.max_steps),
        "min_steps": (trainer.min_steps is not None, trainer.min_steps),
        "overfit_batches": (flags.overfit_batches != 0, flags.overfit_batches),
        "limit_train_batches": (trainer.limit_train_batches == 0, 0),
        "limit_val_batches": (isinstance(val, float) and 0 < val < 1, val),
        "limit_test_batches": (isinstance(test, float) and 0 < test < 1, test),
        "limit_predict_batches": (trainer.limit_predict_batches != 1.0 and not fast, trainer.limit_predict_batches),
        "num_sanity_val_steps": (sanity_steps not in (0, 2), sanity_steps),  # 2 is Lightning's default
    }
    for flag, advice in REFUSED_FLAGS.items():
        is_refused, value = values[flag]
        if is_refused:
            raise ValueError(f"Trainer({flag}={value!r}) cannot work with a reinforcement-learning policy: {advice}")


HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
OF_MODULE = (*HOOKS, "backward", "manual_backward")
LIGHTNING = ("lightning", "pytorch_lightning")


def can_skip_hooks(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether backward and step can skip Lightning without an effect.

    That is the case if neither a callback nor the module implements one of the hooks, the module does not override
    backward, the strategy's class is one of Lightning's, no profiler measures them, and the precision plugin does not
    scale the loss.
    """
    precision = trainer.precision_plugin
    plain = type(precision) is Precision or (type(precision) is MixedPrecision and precision.scaler is None)
    if type(trainer.strategy).__module__.partition(".")[0] not in LIGHTNING:  # it may step in its own way
        return False
    called: Any = trainer  # connectors set some of its attributes
    for hook in HOOKS:
        for callback in called.callbacks:
            if is_overridden(hook, callback, parent=Callback):
                return False
    if any(is_overridden(hook, module, parent=LightningModule) for hook in OF_MODULE):
        return False
    return plain and isinstance(called.profiler, PassThroughProfiler)


TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def can_keep_batches(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether the batches of a fit need no transfer: on a CPU, if neither module nor datamodule has a hook."""
    data: Any = getattr(trainer, "datamodule", None)
    for hook in TRANSFER_HOOKS:
        if is_overridden(hook, module, parent=LightningModule):
            return False
        if data is not None and is_overridden(hook, data, parent=LightningDataModule):
            return False
    return trainer.strategy.root_device.type == "cpu"


def announce_zero_grad(trainer: Trainer, module: LightningModule, optimizer: Optimizer) -> None:
    """Call ``on_before_zero_grad`` of callbacks and module, which Lightning skips in manual optimization."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        callback.on_before_zero_grad(trainer, module, optimizer)
    module.on_before_zero_grad(optimizer)


def count_optimizer_step(trainer: Trainer) -> None:
    """Add one to ``trainer.global_step``."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


HANDED_OVER = "handed_over"
"""Key of a state, which no parameter can have: those of a policy are those of its networks."""


def is_forked(trainer: Trainer) -> bool:
    """Return whether the ranks of a Trainer are forks of the process that called it, as in a notebook."""
    launcher: Any = trainer.strategy.launcher
    return starts_processes(launcher) and launcher.is_interactive_compatible


def is_forked_rank(module: LightningModule) -> bool:
    """Return whether a module is the copy of a forked rank of its Trainer."""
    trainer = attached_trainer(module)
    return trainer is not None and is_forked(trainer)


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the Trainer of a module, or None when it is used without one."""
    try:
        return module.trainer
    except RuntimeError:  # raised by Lightning for a module without a Trainer
        return None


def build_for_trainer(policy: Any, action_selector: Any) -> None:
    """Build the network of a policy from the spaces of its Trainer's datamodule, and act in the Trainer's precision.

    In another precision, the probabilities of actions would be those of a slightly different network than the one that
    learns.

    Raises:
        RuntimeError: If neither the config nor a datamodule provides the spaces.
    """
    trainer: Any = attached_trainer(policy)
    precision, data = getattr(trainer, "precision_plugin", None), getattr(trainer, "datamodule", None)
    action_selector.precision = precision.forward_context if isinstance(precision, MixedPrecision) else nullcontext
    if isinstance(data, HasSpaces):
        policy.build(data.single_observation_space, data.single_action_space)
    elif not policy.is_built:
        raise RuntimeError(no_network(policy))
