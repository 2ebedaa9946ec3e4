"""One optimisation step, the same for every algorithm: under DDP, on one device, and with no Trainer at all."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from lightning_ding.policy.learn_config import GradClip, OptimizerConfig
from lightning_ding.policy.trainer_fast_path import announce_zero_grad, count_optimizer_step

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer

    from lightning_ding.policy.non_finite import NonFiniteGuard

logger = logging.getLogger(__name__)


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor], lr: float) -> Optimizer:
    """Return the optimizer that a config describes.

    Args:
        config: Its class and what does not depend on the parameters.
        parameters: What it updates.
        lr: Its step size at the start, > 0.
    """
    shared: dict[str, Any] = {"params": parameters, "lr": lr, "weight_decay": config.weight_decay}
    if config.type == "sgd":
        return torch.optim.SGD(**shared, momentum=config.momentum, fused=True)
    if config.type == "rmsprop":  # torch has no fused one
        return torch.optim.RMSprop(**shared, eps=config.eps, momentum=config.momentum)
    kind = torch.optim.AdamW if config.type == "adamw" else torch.optim.Adam
    return kind(**shared, eps=config.eps, fused=True)


def optimisation_step(
    module: LightningModule,
    optimizer: Optimizer,
    index: int,
    loss: Tensor,
    clip: GradClip = GradClip(),  # noqa: B008 - it cannot be changed
    trainer: Trainer | None = None,
    direct: bool = False,
    guard: NonFiniteGuard | None = None,
) -> Tensor | None:
    """Zero the gradients, backward, average over ranks, see that all is finite, clip, step.

    DDP's reducer expects one backward for each call of ``training_step`` that reaches every parameter; an update here
    is one of many and may belong to one loss of several. So the backward runs with the reducer off, and the gradients
    of this optimizer are averaged in one flat all-reduce. Clipping comes after it, so that all ranks clip the gradient
    of the whole batch.

    Args:
        module: The policy.
        optimizer: Whose parameters to update.
        index: Its place among ``module.configure_optimizers()``.
        loss: A scalar.
        clip: How the gradient is clipped.
        trainer: The Trainer of a fit that goes on; it does the backward and the step, so that hooks, precision and
            ``global_step`` work. None without one.
        direct: Go past Lightning's hooks; see ``trainer_fast_path``.
        guard: Decides on an update whose loss or gradient is not finite; None makes every update.

    Returns:
        The norm of the gradient before clipping, a scalar, or None if it is not clipped by its norm.

    Raises:
        NonFiniteError: If the guard does.
    """
    everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters = [parameter for parameter in everything if parameter.requires_grad]
    if trainer is not None and not direct:
        announce_zero_grad(trainer, module, optimizer)
    for parameter in parameters:
        parameter.grad = None
    if trainer is None:
        loss.backward(inputs=parameters)
    else:
        with _reducer_off(trainer):
            backward = loss.backward if direct else functools.partial(module.manual_backward, loss)
            backward(inputs=parameters)  # a loss that passes through another network costs nothing for its weights
    if dist.is_initialized() and dist.get_world_size() > 1:
        loss = average_gradients(parameters, loss)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = None if clip.norm is None else get_total_norm(gradients)
    if guard is not None and not guard.allows(optimizer, index, loss, gradients, norm):
        if trainer is not None:
            count_optimizer_step(trainer)  # as if it had been made, which is what happens on a GPU
        return norm
    if norm is not None:
        clip_grads_with_norm_(parameters, cast(float, clip.norm), norm)
    if clip.value is not None:
        clip_grad_value_(parameters, clip.value)
    _step(module, optimizer, index, trainer, direct)
    torch.clear_autocast_cache()  # it would hold the weights of before the step until the whole round is learned
    return norm


def _step(module: LightningModule, optimizer: Any, index: int, trainer: Trainer | None, direct: bool) -> None:
    if trainer is None:
        optimizer.step()
    elif direct:
        optimizer.step()
        count_optimizer_step(trainer)
    else:
        wrapped = module.optimizers()
        (wrapped[index] if isinstance(wrapped, list) else wrapped).step()
    optimizer.__dict__.pop("found_inf", None)  # which a guard may have set for this step


@torch.no_grad()
def average_gradients(parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
    """Average the gradients and the loss over all ranks in one all-reduce.

    A parameter that has no gradient on a rank counts there as zero; one that has none on any rank keeps none.

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


def warn_of_other_rates(optimizers: Sequence[Optimizer], is_scheduled: bool) -> None:
    """Say which optimizers go on with the learning rate of a checkpoint where the config has another one.

    Args:
        optimizers: The policy's, with the state of the checkpoint.
        is_scheduled: Whether the rate is that of a schedule, whose start is to be compared.
    """
    for index, optimizer in enumerate(optimizers):
        group, asked = optimizer.param_groups[0], optimizer.defaults.get("lr")
        loaded = group.get("initial_lr", group.get("lr")) if is_scheduled else group.get("lr")
        if asked is not None and loaded != asked:
            text = "optimizer %d goes on with the learning rate %g of the checkpoint, not with %g of the config"
            logger.warning(text, index, loaded, asked)


def acting_precision(trainer: Trainer | None) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes the context in which a network acts: under mixed precision the one in which it learns.

    Probabilities of actions would otherwise be those of a slightly different network than the one that learns.
    """
    precision = None if trainer is None else trainer.precision_plugin
    return precision.forward_context if isinstance(precision, MixedPrecision) else nullcontext


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the Trainer of a module, or None when it is used without one."""
    try:
        return module.trainer
    except RuntimeError:  # what Lightning raises for a module without a Trainer
        return None


def _reducer_off(trainer: Trainer) -> AbstractContextManager[None]:
    strategy = trainer.strategy
    return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()
