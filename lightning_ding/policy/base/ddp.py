"""Average the gradients of all ranks, and find out once in a while whether their weights have become different.

Every rank begins with the same weights and makes the same steps, because :class:`Updater` averages the gradients. A
``_forward_learn`` with its own backward pass and its own optimizer step does not, unless it averages them itself.

Shapes: P parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding.policy.base.trainer import attached_trainer
from lightning_ding.utils.ranks import gather_rows, rank_and_world_size, world_size

logger = logging.getLogger(__name__)

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by the bytes of a number."""


class WeightComparison:
    """Compares the weights of the ranks after the first round of a fit and after the last one of each epoch.

    The first difference is logged, and ends the comparisons of the fit. A comparison exchanges one number for each
    parameter. Buffers, such as the statistics of a batch norm, may differ.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._has_warned = False

    def after_round(self, policy: Any, batch_idx: int) -> None:
        """Compare the weights if that is due; all ranks call it.

        Args:
            policy: The policy that learns.
            batch_idx: Index of the round in its epoch, from 0.
        """
        trainer = None if self._has_warned else attached_trainer(policy)
        if trainer is None or not (self._is_first or batch_idx + 1 >= trainer.num_training_batches):
            return
        self._is_first = False
        name = first_difference(policy.named_parameters())
        self._has_warned = name is not None
        if name is not None and rank_and_world_size()[0] == 0:
            logger.warning(
                "the weights of the ranks differ after update %d, first in %s: a %s._forward_learn with its own "
                "backward pass has to call self.sync_gradients(self.model) before its optimizer steps; "
                "self.updater.minimise(self.loss, batch) does that itself",
                policy.progress.train_iter, name, type(policy).__name__,
            )  # fmt: skip


@torch.no_grad()
def first_difference(parameters: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first parameter that is not the same on all ranks, or None; all ranks call it.

    Args:
        parameters: P names and parameters, in the same order on every rank; those without a shape yet are left out.
    """
    named = [(name, one) for name, one in parameters if not torch.nn.parameter.is_lazy(one)]
    if not named:
        return None
    rows = gather_rows(torch.stack([checksum(one.detach()).cpu() for _, one in named]))  # (ranks, P)
    is_same = (rows == rows[0]).all(0)
    return next((name for (name, _), same in zip(named, is_same.tolist(), strict=True) if not same), None)


def checksum(tensor: Tensor) -> Tensor:
    """Return a sum of integers over the bits of all numbers, which is the same in any order of adding up.

    The squares keep differences of opposite signs from cancelling.

    Example:
        >>> one = torch.tensor([1.0, 2.0])
        >>> bool(checksum(one) == checksum(one.clone())), bool(checksum(one) == checksum(one.nextafter(one + 1)))
        (True, False)
    """
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = real.view(INTEGERS[real.element_size()]).long()
    return (bits * bits).add_(bits).sum()


@torch.no_grad()
def average_gradients(parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
    """Average the gradients and the loss over all ranks in one all-reduce.

    A missing gradient counts as zero; a parameter without a gradient on any rank keeps none.

    Args:
        parameters: The same on every rank, in the same order.
        loss: A scalar.

    Returns:
        The mean loss, a scalar, detached.
    """
    parts = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters]
    has_gradient = parts[0].new_tensor([p.grad is not None for p in parameters])
    flat = torch.cat([*parts, loss.detach().reshape(1), has_gradient])
    dist.all_reduce(flat)
    flat[: -len(parameters)] /= dist.get_world_size()
    sizes = [*(len(part) for part in parts), 1, len(parameters)]
    *means, mean_loss, contributors = cast("tuple[Tensor, ...]", flat.split(sizes))
    for index, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
        if parameter.grad is not None or contributors[index] > 0:  # the second test waits for the device, and is rare
            parameter.grad = mean.view_as(parameter)
    return mean_loss.reshape(())


def sync_gradients(parameters: Iterable[Tensor]) -> None:
    """Average gradients over all ranks, in one all-reduce; a missing gradient counts as zero."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if world_size() > 1 and trained:
        average_gradients(trained, trained[0].new_zeros(()))
