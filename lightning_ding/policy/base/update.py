"""How a policy turns a loss into new weights: one optimisation step, eager or compiled.

Shapes: U updates, B batch, P parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP, GradClip, PolicyConfig
from lightning_ding.policy.base.fused_adam import FusedAdam
from lightning_ding.policy.base.non_finite import NonFiniteGuard, Update
from lightning_ding.policy.base.optimizers import (
    ConfiguredSchedulers,
    Settings,
    check_optimizers,
    read_configuration,
    warn_of_epochs_without_trainer,
)
from lightning_ding.policy.base.trainer import (
    announce_zero_grad,
    can_skip_hooks,
    count_optimizer_step,
)
from lightning_ding.policy.base.vitals import RoundNotes
from lightning_ding.utils.private_api import TRAINER, backward
from lightning_ding.utils.progress import Progress
from lightning_ding.utils.ranks import world_size
from lightning_ding.utils.schedules import ScheduledValues

if TYPE_CHECKING:
    from lightning_ding.policy.base.compile import Compiler, Differentiated, LossFunction


class Updater:
    """Makes the optimisation steps of a policy; an algorithm calls :meth:`minimise` for each of its losses.

    An eager step zeroes the gradients, runs the backward pass, averages over ranks, checks that all is finite, clips
    and steps. A compiled update differs in how the gradient is computed only, see :class:`Compiler`.

    Args:
        policy: The module whose parameters are trained.
        config: The policy's config; ``learn``, ``compile`` and ``on_non_finite`` are read.
        progress: Counters of the run.
    """

    def __init__(self, policy: LightningModule, config: PolicyConfig, progress: Progress) -> None:
        self.optimizers: list[Optimizer] = []
        """One optimizer for each loss; ``_init_learn`` of an algorithm sets them."""
        self.schedulers: list[LRScheduler] = []
        """Learning-rate schedulers that ``configure_optimizers`` returned."""
        self.schedules = ScheduledValues(config.learn)
        """Values that the config schedules, such as ``learn.lr_scheduler``."""
        self.guard = NonFiniteGuard(policy, config.on_non_finite)
        """Checks the loss and the gradient of each step."""
        self.unscheduled: set[int] = set()
        """Indices of optimizers whose learning rates ``learn.lr_scheduler`` does not scale."""
        self.settings: list[Settings] = []
        """Settings with which the optimizers began the fit, apart from a checkpoint's."""
        self.loaded_settings: list[Settings] | None = None
        """``settings`` of the run that wrote the checkpoint which was loaded last."""
        self.steps_directly = False
        """Whether a fit's steps skip Lightning's hooks; see :func:`can_skip_hooks`."""
        self.clip = config.learn.grad_clip
        """How gradients are clipped, unless an algorithm says otherwise."""
        self.notes: RoundNotes | None = None
        """Notes of the updates of an observed round; None in all other rounds."""
        self.constrained: dict[int, list[Any]] = {}  # layers whose weights a step has to restrict again, by its index
        self.resets: Any = None  # the Resets of networks during the run; None for none
        self._policy, self._progress = policy, progress
        self._compiles = config.compile
        self.compiler: Compiler | None = None
        if config.compile in (True, "cuda_graphs"):
            from lightning_ding.policy.base.compile import Compiler

            self.compiler = Compiler(policy, graphs=config.compile == "cuda_graphs")
        self._made: tuple[list[Optimizer], list[LRScheduler]] | None = None
        self._configured: ConfiguredSchedulers | None = None
        self._num_ranks, self._has_reducer = 1, False  # in the current fit
        self._steppers: dict[Optimizer, FusedAdam] = {}

    def minimise(self, loss: LossFunction, batch: Any, index: int = 0, clip: GradClip | None = None) -> dict[str, Any]:
        """Make one optimisation step on a minibatch, and return the metrics that the loss reports.

        Args:
            loss: Returns a scalar loss and a detached report. It must be a function of tensors only, so that it can be
                compiled: random numbers come with the batch.
            batch: The argument of ``loss``.
            index: Index of the optimizer that steps; the parameters of the others get no gradient.
            clip: How the gradient is clipped; None uses the config's ``learn.grad_clip_norm`` and ``grad_clip_value``.

        Raises:
            NonFiniteError: If the loss or the gradient is not finite, and ``on_non_finite`` is "raise".
        """
        clip = self.clip if clip is None else clip
        outer = self.guard.update
        self.guard.update = Update(loss, batch, index, clip, self._progress.train_iter)
        made: Differentiated | None = None
        if self.compiler is not None and getattr(self._policy, "compiles_losses", True):
            self.take_optimizers()
            groups, is_direct = self.optimizers[index].param_groups, self.steps_directly or not self.fitting_trainer()
            parameters = [one for group in groups for one in group["params"] if one.requires_grad]
            made = self.compiler.differentiate(loss, batch, parameters, is_direct)
        if made is None:
            value, report = loss(batch)
            self.step(value, index, clip)
        else:
            report = made.report
            self.step(made.loss, index, clip, made.norm)
        self.guard.update = outer
        return report

    def step(self, loss: Tensor, index: int = 0, clip: GradClip = NO_CLIP, norm: Tensor | None = None) -> Tensor | None:
        """Make one optimisation step, and return the norm of the gradient before clipping, or None if it is not known.

        DDP's reducer expects one backward for each call of ``training_step`` that reaches every parameter; an update
        here is one of many and may belong to one loss of several. The backward pass therefore runs with the reducer
        off, and the gradients of this optimizer are averaged in one flat all-reduce, before they are clipped.

        Args:
            loss: A scalar.
            index: Index of the optimizer that steps.
            clip: How the gradient is clipped.
            norm: The norm of the gradient if it was already computed, which ``grad`` then holds; None computes it.

        Raises:
            NonFiniteError: If the loss or the gradient is not finite, and ``on_non_finite`` is "raise".
        """
        configured, trainer, optimizer = self.take_optimizers(), self.fitting_trainer(), self.optimizers[index]
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        if norm is None:
            self._backward(loss, optimizer, parameters, trainer)
        if (world_size() if trainer is None else self._num_ranks) > 1:
            from lightning_ding.policy.base.ddp import average_gradients

            loss, norm = average_gradients(parameters, loss), None
        gradients = [gradient for one in parameters if (gradient := one.grad) is not None]
        if norm is None and clip.norm is not None:
            norm = get_total_norm(gradients)
        if self.notes is not None and norm is not None:
            self.notes.norms.setdefault(index, []).append(norm)
            self.notes.limits[index] = clip.norm
        if self.guard.allows(optimizer, index, loss, gradients, norm):
            if clip.norm is not None and norm is not None:
                clip_grads_with_norm_(parameters, clip.norm, norm)
            if clip.value is not None:
                clip_grad_value_(parameters, clip.value)
            self._step_optimizer(optimizer, index, gradients, trainer)
        elif trainer is not None:
            count_optimizer_step(trainer)  # a step that is left out counts as well, as it does on a GPU
        if configured.per_update:
            configured.after_update(index, self._progress.train_iter)
        return norm

    def _backward(self, loss: Tensor, optimizer: Optimizer, parameters: list[Tensor], trainer: Trainer | None) -> None:
        differentiate: Any = backward
        if trainer is not None and not self.steps_directly:
            announce_zero_grad(trainer, self._policy, optimizer)
            differentiate = self._policy.manual_backward
        for parameter in parameters:
            parameter.grad = None
        if trainer is None or not self._has_reducer:
            differentiate(loss, inputs=parameters)
        else:
            with cast(ParallelStrategy, trainer.strategy).block_backward_sync():
                differentiate(loss, inputs=parameters)

    def _step_optimizer(self, optimizer: Any, index: int, gradients: list[Tensor], trainer: Trainer | None) -> None:
        if trainer is not None and not self.steps_directly:
            wrapped: Any = self._policy.optimizers()
            (wrapped[index] if isinstance(wrapped, list) else wrapped).step()
        else:
            stepper = self._steppers.get(optimizer) or self._steppers.setdefault(optimizer, FusedAdam(optimizer))
            stepper.step(gradients)
            if trainer is not None:
                count_optimizer_step(trainer)
        for layer in self.constrained.get(index, ()):
            layer.after_step()
        optimizer.__dict__.pop("found_inf", None)  # the guard may have set it for this step
        torch.clear_autocast_cache()  # it would keep the weights from before the step until the end of the round

    @property
    def compiles(self) -> bool:
        """Whether the losses of the update that is being made are compiled."""
        return self.compiler is not None and self.guard.update is not None

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling updates has taken so far; 0 without ``compile``."""
        return 0.0 if self.compiler is None else self.compiler.seconds

    @property
    def made(self) -> tuple[list[Optimizer], list[LRScheduler]]:
        """The optimizers and schedulers that ``_init_learn`` made."""
        return self._made or (self.optimizers, self.schedulers)

    def begin_fit(self, trainer: Trainer) -> None:
        """Take over the Trainer's optimizers, and find out whether its hooks of an update are used."""
        self._configured = None
        self._num_ranks = world_size()
        self.take_optimizers()
        self.steps_directly = can_skip_hooks(trainer, self._policy)
        self._has_reducer = isinstance(trainer.strategy, ParallelStrategy)
        if self._compiles == "auto":
            from lightning_ding.policy.base.compile import automatic_compiler

            self.compiler = automatic_compiler(self._policy, self.compiler, trainer.world_size)
        elif self._compiles == "cuda_graphs":
            device = self._policy.device
            require(device.type == "cuda", "compile", f"True, False or 'auto' on the device {device}", self._compiles)
        if trainer.ckpt_path is not None:
            from lightning_ding.policy.base.changed_settings import follow_settings

            follow_settings(self, trainer)

    def take_optimizers(self) -> ConfiguredSchedulers:
        """Use the Trainer's optimizers, or outside a fit those of ``configure_optimizers``; return the schedulers.

        Raises:
            ValueError: If an optimizer or a scheduler cannot work here.
        """
        if self._configured is not None:
            return self._configured
        trainer, made = self.fitting_trainer(), self.made
        if trainer is None:
            optimizers, configs = read_configuration(self._policy.configure_optimizers())
        else:
            optimizers, configs = list(trainer.optimizers), trainer.lr_scheduler_configs
        check_optimizers(self._policy, optimizers, len(made[0]))
        configured = ConfiguredSchedulers(self._policy, configs, optimizers)
        if configs:
            self.schedules.give_way()
        both = "of type constant with a scheduler of configure_optimizers"
        require(not (configs and self.schedules.sets_learning_rate), "learn.lr_scheduler", both, "another one")
        if trainer is None:
            warn_of_epochs_without_trainer(configured.per_epoch)
        self._made, self._configured = made, configured
        self.optimizers, self.schedulers = optimizers, [config.scheduler for config in configs]
        return configured

    def fitting_trainer(self) -> Trainer | None:
        """Return the Trainer of the current fit; None outside a fit."""
        trainer: Trainer | None = vars(self._policy).get(TRAINER)
        is_fitting = trainer is not None and trainer.state.stage is RunningStage.TRAINING
        return trainer if is_fitting else None

    def apply_schedules(self, env_step: int) -> None:
        """Set the scheduled values to those after ``env_step`` env steps; once a round."""
        if self.schedules:
            self.take_optimizers()
            scheduled = [one for index, one in enumerate(self.optimizers) if index not in self.unscheduled]
            self.schedules.apply(env_step, self._progress.budget, scheduled, self._policy.device)

    def end_round(self, batch_idx: int) -> None:
        """Step the schedulers whose unit is an epoch, if the round ``batch_idx`` is the last one of its epoch."""
        configured = self.take_optimizers()
        if configured.per_epoch and batch_idx + 1 >= self._policy.trainer.num_training_batches:
            configured.after_epoch(self._policy.current_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the optimizers and schedulers."""
        self.take_optimizers()
        return {
            "optimizer": [optimizer.state_dict() for optimizer in self.optimizers],
            "lr_scheduler": [scheduler.state_dict() for scheduler in self.schedulers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.take_optimizers()
        for optimizer, saved in zip(self.optimizers, state["optimizer"], strict=True):
            optimizer.load_state_dict(copy.deepcopy(saved))  # torch would share the tensors of the other optimizer
        for scheduler, saved in zip(self.schedulers, state["lr_scheduler"], strict=True):
            scheduler.load_state_dict(saved)
