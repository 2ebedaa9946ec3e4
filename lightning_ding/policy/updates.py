"""How a policy turns a loss into an update: eagerly, compiled, or several in one piece of compiled code.

Shapes: U updates, B batch.
"""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.attributes import PolicyAttributes
from lightning_ding.policy.compiled import Compiler, LossFunction
from lightning_ding.policy.given import (
    GivenSchedulers,
    check_optimizers,
    read_configuration,
    warn_of_epochs_without_trainer,
)
from lightning_ding.policy.learn_config import GradClip
from lightning_ding.policy.non_finite import NonFiniteGuard
from lightning_ding.policy.non_finite_dump import Update
from lightning_ding.policy.optimisation import attached_trainer, optimisation_step
from lightning_ding.policy.round import Batch
from lightning_ding.policy.scheduling import Schedules

NO_CLIP = GradClip()
LARGEST_PIECE = 5  # updates in one piece of compiled code; compiling takes the longer, the more there are


class PolicyUpdates(PolicyAttributes):
    """The part of a policy that makes updates; an algorithm calls :meth:`minimise` for each of its losses."""

    guard: NonFiniteGuard
    _compiler: Compiler | None
    _step_directly: bool
    _scheduler_list: list[LRScheduler]
    _made: tuple[list[Optimizer], list[LRScheduler]] | None = None  # what ``_init_learn`` made
    _given: GivenSchedulers | None = None
    _schedules: Schedules

    # ------------------------------------------------------------------ optimizers

    def configure_optimizers(self) -> Any:
        """Return the optimizers and schedulers that ``_init_learn`` made (Lightning hook).

        A subclass may return others in any form that Lightning takes: one optimizer for each loss, in the same order.
        They are what an update steps, in a fit and without a Trainer. A scheduler is stepped after each update of its
        optimizer with ``interval="step"``, and after the last round of each epoch with ``interval="epoch"``.
        """
        return self._made or (self._optimizer_list, self._scheduler_list)

    def _taken(self) -> GivenSchedulers:
        """Return the schedulers of ``configure_optimizers``, whose optimizers are taken if they are not yet."""
        return self._take_optimizers() if self._given is None else self._given

    def _take_optimizers(self) -> GivenSchedulers:
        """Step from now on what Lightning was given, or without a fit what ``configure_optimizers`` returns.

        Raises:
            ValueError: If an optimizer or a scheduler cannot work here.
        """
        trainer = self._fitting_trainer()
        if trainer is None:
            optimizers, configs = read_configuration(self.configure_optimizers())
        else:
            optimizers, configs = list(trainer.optimizers), trainer.lr_scheduler_configs
        made = self._made or (self._optimizer_list, self._scheduler_list)
        check_optimizers(self, optimizers, len(made[0]))
        given = GivenSchedulers(self, configs, optimizers)
        both = "of type constant with a scheduler of configure_optimizers"
        if configs:
            self._schedules.give_way()
        require(not (configs and self._schedules.sets_learning_rate), "learn.lr_scheduler", both, "another one")
        if trainer is None:
            warn_of_epochs_without_trainer(given.per_epoch)
        self._made, self._given = made, given
        self._optimizer_list = optimizers
        self._scheduler_list = [config.scheduler for config in configs]
        return given

    # ------------------------------------------------------------------ schedules

    def scheduled_values(self) -> dict[str, float]:
        """Return the weights in the loss that are scheduled, as they are in this round, by their names in ``learn``."""
        return self._schedules.values

    def scheduled_at(self) -> dict[str, int]:
        """Return the ``env_step`` that schedules were evaluated at, if anything is scheduled."""
        return {"env_step": self._schedules.env_step} if self._schedules else {}

    def _apply_schedules(self, env_step: int) -> None:
        """Set what is scheduled to its values after ``env_step`` env steps; once a round."""
        if self._schedules:
            self._taken()
            self._schedules.apply(env_step, self.progress.budget, self._optimizer_list, self.device)

    # ------------------------------------------------------------------ updates

    def optimise(self, loss: Tensor, index: int = 0, clip: GradClip = NO_CLIP) -> Tensor | None:
        """Zero, backward, average over ranks, clip and step; see :func:`optimisation_step`."""
        given = self._taken()
        optimizer = self._optimizer_list[index]
        trainer, direct = self._fitting_trainer(), self._step_directly
        norm = optimisation_step(self, optimizer, index, loss, clip, trainer, direct, self.guard)
        if given.per_update:
            given.after_update(index, self.progress.train_iter)
        return norm

    def minimise_together(
        self, loss: LossFunction, data: Batch, index: int = 0, clip: GradClip = NO_CLIP
    ) -> dict[str, Any] | None:
        """Make an optimisation step on each minibatch, leading axes (U, B), a few at a time in compiled code.

        Nothing but the parameters and the optimizer's state changes between them. Arguments are those of ``minimise``.

        Returns:
            What the loss reports of the last one; None, and nothing has changed, if they have to be made one by one.
        """
        if self._taken().per_update:
            return None  # the learning rate changes between two updates
        updates = nested.length(data)
        size = max(number for number in range(1, LARGEST_PIECE + 1) if updates % number == 0)
        made = (self._optimizer_list[index], clip, self._fitting_trainer(), self._step_directly)
        report, before = None, self.progress.train_iter
        for number, piece in enumerate(nested.split(data, size) if size > 1 else ()):
            self.guard.update = Update(loss, piece, index, clip, before + number * size)
            report = cast(Compiler, self._compiler).minimise(loss, cast(Batch, piece), *made, updates=size)
            if report is None and number == 0:
                return None
            for minibatch in nested.unbind(piece) if report is None else ():  # it gave up on the way
                report = self.minimise(loss, cast(Batch, minibatch), index, clip)
        return report

    @property
    def compile_seconds(self) -> float:
        """Time that compiling updates has taken so far; 0 without ``compile``."""
        return 0.0 if self._compiler is None else self._compiler.seconds

    def _fitting_trainer(self) -> Trainer | None:
        trainer = attached_trainer(self)
        return trainer if trainer is not None and trainer.training else None

    def minimise(self, loss: LossFunction, batch: Batch, index: int = 0, clip: GradClip = NO_CLIP) -> dict[str, Any]:
        """Make one optimisation step on a minibatch, and return what the loss reports.

        Args:
            loss: Returns a scalar loss and what to report of it, detached; a function of tensors alone, so that it can
                be compiled: whatever is random comes with the batch.
            batch: What ``loss`` gets.
            index: Which optimizer steps; the others' parameters get no gradient.
            clip: How the gradient is clipped; ``config.learn.grad_clip`` is what the config says.
        """
        whole = self.guard.update
        self.guard.update = Update(loss, batch, index, clip, self.progress.train_iter)
        report = None
        if self._compiler is not None:
            given = self._taken()
            made = (batch, self._optimizer_list[index], clip)
            report = self._compiler.minimise(loss, *made, self._fitting_trainer(), self._step_directly)
            if report is not None and given.per_update:
                given.after_update(index, self.progress.train_iter)
        if report is None:
            value, report = loss(batch)
            self.optimise(value, index, clip)
        self.guard.update = whole
        return report
