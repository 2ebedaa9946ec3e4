"""How a policy turns a loss into an update: eagerly, compiled, or several in one piece of compiled code.

Shapes: U updates, B batch.
"""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Trainer
from torch import Tensor

from lightning_ding import nested
from lightning_ding.policy.attributes import PolicyAttributes
from lightning_ding.policy.compiled import Compiler, LossFunction
from lightning_ding.policy.non_finite import NonFiniteGuard
from lightning_ding.policy.non_finite_dump import Update
from lightning_ding.policy.optimisation import attached_trainer, optimisation_step
from lightning_ding.policy.round import Batch

LARGEST_PIECE = 5  # updates in one piece of compiled code; compiling takes the longer, the more there are


class PolicyUpdates(PolicyAttributes):
    """The part of a policy that makes updates; an algorithm calls :meth:`minimise` for each of its losses."""

    guard: NonFiniteGuard
    _compiler: Compiler | None
    _step_directly: bool

    def optimise(self, loss: Tensor, index: int = 0, grad_clip_norm: float | None = None) -> Tensor | None:
        """Zero, backward, average over ranks, clip and step; see :func:`optimisation_step`."""
        optimizer = self._optimizer_list[index]
        trainer, direct = self._fitting_trainer(), self._step_directly
        return optimisation_step(self, optimizer, index, loss, grad_clip_norm, trainer, direct, self.guard)

    def minimise_together(
        self, loss: LossFunction, data: Batch, index: int = 0, grad_clip_norm: float | None = None
    ) -> dict[str, Any] | None:
        """Make an optimisation step on each minibatch, leading axes (U, B), a few at a time in compiled code.

        Nothing but the parameters and the optimizer's state changes between them. Arguments are those of ``minimise``.

        Returns:
            What the loss reports of the last one; None, and nothing has changed, if they have to be made one by one.
        """
        updates = nested.length(data)
        size = max(number for number in range(1, LARGEST_PIECE + 1) if updates % number == 0)
        made = (self._optimizer_list[index], grad_clip_norm, self._fitting_trainer(), self._step_directly)
        report, before = None, self.progress.train_iter
        for number, piece in enumerate(nested.split(data, size) if size > 1 else ()):
            self.guard.update = Update(loss, piece, index, grad_clip_norm, before + number * size)
            report = cast(Compiler, self._compiler).minimise(loss, cast(Batch, piece), *made, updates=size)
            if report is None and number == 0:
                return None
            for minibatch in nested.unbind(piece) if report is None else ():  # it gave up on the way
                report = self.minimise(loss, cast(Batch, minibatch), index, grad_clip_norm)
        return report

    @property
    def compile_seconds(self) -> float:
        """Time that compiling updates has taken so far; 0 without ``compile``."""
        return 0.0 if self._compiler is None else self._compiler.seconds

    def _fitting_trainer(self) -> Trainer | None:
        trainer = attached_trainer(self)
        return trainer if trainer is not None and trainer.training else None

    def minimise(
        self, loss: LossFunction, batch: Batch, index: int = 0, grad_clip_norm: float | None = None
    ) -> dict[str, Any]:
        """Make one optimisation step on a minibatch, and return what the loss reports.

        Args:
            loss: Returns a scalar loss and what to report of it, detached; a function of tensors alone, so that it can
                be compiled: whatever is random comes with the batch.
            batch: What ``loss`` gets.
            index: Which optimizer steps; the others' parameters get no gradient.
            grad_clip_norm: Largest norm of the gradient, > 0; None for no limit.
        """
        whole = self.guard.update
        self.guard.update = Update(loss, batch, index, grad_clip_norm, self.progress.train_iter)
        report = None
        if self._compiler is not None:
            made = (batch, self._optimizer_list[index], grad_clip_norm)
            report = self._compiler.minimise(loss, *made, self._fitting_trainer(), self._step_directly)
        if report is None:
            value, report = loss(batch)
            self.optimise(value, index, grad_clip_norm)
        self.guard.update = whole
        return report
