"""The optimizers of a policy: those that its config describes, and those that ``configure_optimizers`` returns.

Learning-rate schedulers that ``configure_optimizers`` returns are stepped here. The schedule of the config,
``learn.lr_scheduler``, and its shapes are in :mod:`lightning_ding.utils.schedules`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_ding.config import require

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The class of the optimizers and their shared arguments; step sizes have separate fields."""

    type: Literal["adam", "adamw", "laprop", "rmsprop", "sgd"] = "adam"
    """Class in torch.optim, or laprop, see :class:`LaProp`."""
    eps: float = 1e-8
    """Added to the denominator of the step, > 0; not for sgd."""
    weight_decay: float = 0.0
    """Share of the weights, >= 0, that adamw and laprop subtract in each step, times the step size; others add it to
    the gradient. Temperatures do not decay."""
    momentum: float = 0.0
    """Share of the previous step that is added, in [0, 1); for sgd and rmsprop."""
    betas: Sequence[float] = (0.9, 0.999)
    """Decay rates of the means of the gradient and of its square, two numbers in [0, 1); not for rmsprop and sgd."""

    def __post_init__(self) -> None:
        require(self.eps > 0, "learn.optimizer.eps", "> 0", self.eps)
        require(self.weight_decay >= 0, "learn.optimizer.weight_decay", ">= 0", self.weight_decay)
        require(0 <= self.momentum < 1, "learn.optimizer.momentum", "in [0, 1)", self.momentum)
        has_eps = self.type != "sgd" or self.eps == type(self).eps
        require(has_eps, "learn.optimizer.eps", "left at its default with sgd", self.eps)
        has_momentum = self.type in ("sgd", "rmsprop") or self.momentum == 0
        require(has_momentum, "learn.optimizer.momentum", f"0 with {self.type}", self.momentum)
        are_rates = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(are_rates, "learn.optimizer.betas", "two numbers in [0, 1)", self.betas)
        has_betas = self.type in ("adam", "adamw", "laprop") or tuple(self.betas) == type(self).betas
        require(has_betas, "learn.optimizer.betas", f"left at their default with {self.type}", self.betas)


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor], lr: float) -> Optimizer:
    """Return the optimizer that a config describes.

    Args:
        config: Class and arguments of the optimizer.
        parameters: The parameters that it trains.
        lr: Initial step size of the optimizer, > 0.
    """
    shared: dict[str, Any] = {"params": parameters, "lr": lr, "weight_decay": config.weight_decay}
    if config.type == "sgd":
        return torch.optim.SGD(**shared, momentum=config.momentum, fused=True)
    if config.type == "rmsprop":  # torch has no fused one
        return torch.optim.RMSprop(**shared, eps=config.eps, momentum=config.momentum)
    if config.type == "laprop":
        from lightning_ding.policy.base.laprop import LaProp

        return LaProp(**shared, betas=(config.betas[0], config.betas[1]), eps=config.eps)
    kind = torch.optim.AdamW if config.type == "adamw" else torch.optim.Adam
    return kind(**shared, betas=(config.betas[0], config.betas[1]), eps=config.eps, fused=True)


FIELDS = {field.name for field in fields(LRSchedulerConfig)}


class ConfiguredSchedulers:
    """The learning-rate schedulers that ``configure_optimizers`` returned, by when they are stepped.

    With ``interval="step"`` a scheduler is stepped after each update of its optimizer, with ``interval="epoch"``,
    which is Lightning's default, after the last round of an epoch. ``frequency`` leaves out updates by
    ``progress.train_iter`` and epochs by ``trainer.current_epoch``, so a resumed run needs no counter for it.

    Args:
        module: The policy, whose hook ``lr_scheduler_step`` makes the step.
        configs: The schedulers as Lightning or :func:`read_configuration` describes them.
        optimizers: The policy's, in order.

    Raises:
        ValueError: If a scheduler needs a metric, is not of one of the optimizers, or has another interval.
    """

    def __init__(
        self, module: LightningModule, configs: Iterable[LRSchedulerConfig], optimizers: Sequence[Optimizer]
    ) -> None:
        self._module = module
        self.configs = list(configs)
        self.per_update: dict[int, list[LRSchedulerConfig]] = {}
        """Schedulers to step after an update, by the index of their optimizer."""
        self.per_epoch: list[LRSchedulerConfig] = []
        """Schedulers to step after an epoch."""
        for config in self.configs:
            scheduler, name = config.scheduler, type(config.scheduler).__name__
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    "configure_optimizers must not return ReduceLROnPlateau: Lightning's manual optimisation passes no "
                    "metric on to it; keep it in an attribute, and step it in on_validation_epoch_end with "
                    'trainer.callback_metrics["eval/return_mean"]'
                )
            require(config.interval in ("step", "epoch"), "interval", f'"step" or "epoch" for {name}', config.interval)
            require(config.frequency >= 1, "frequency", f">= 1 for {name}", config.frequency)
            optimizer: Any = getattr(scheduler, "optimizer", None)
            places = [place for place, one in enumerate(optimizers) if one is optimizer]
            require(bool(places), f"the optimizer of {name}", "one that configure_optimizers returns", optimizer)
            if config.interval == "step":
                self.per_update.setdefault(places[-1], []).append(config)
            else:
                self.per_epoch.append(config)

    def after_update(self, index: int, train_iter: int) -> None:
        """Step the schedulers of the optimizer at ``index`` after the update number ``train_iter``, from 0."""
        self._step(self.per_update.get(index, ()), train_iter + 1)

    def after_epoch(self, epoch: int) -> None:
        """Step the schedulers whose unit is an epoch, at the end of the epoch number ``epoch``, from 0."""
        self._step(self.per_epoch, epoch + 1)

    def _step(self, configs: Iterable[LRSchedulerConfig], count: int) -> None:
        for config in configs:
            if count % config.frequency == 0:
                with warnings.catch_warnings():
                    # a compiled update does not call optimizer.step, and a skipped one does not either
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                    self._module.lr_scheduler_step(config.scheduler, None)


def read_configuration(returned: Any) -> tuple[list[Any], list[LRSchedulerConfig]]:
    """Return the optimizers and schedulers of what a ``configure_optimizers`` returned, in any of Lightning's forms.

    Lightning does this in a fit; without a Trainer it has no public function for it (2.6.6).
    """
    schedulers: Any
    if isinstance(returned, (list, tuple)) and len(returned) == 2 and isinstance(returned[0], list):
        optimizers, schedulers = list(returned[0]), returned[1]
    else:
        parts = list(returned) if isinstance(returned, (list, tuple)) else [] if returned is None else [returned]
        optimizers = [part["optimizer"] if isinstance(part, Mapping) else part for part in parts]
        schedulers = [part["lr_scheduler"] for part in parts if isinstance(part, Mapping) and "lr_scheduler" in part]
    configs = []
    for one in schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]:
        known = {key: one[key] for key in one if key in FIELDS} if isinstance(one, Mapping) else {"scheduler": one}
        configs.append(LRSchedulerConfig(**known))
    return optimizers, configs


def check_optimizers(module: LightningModule, optimizers: Sequence[Any], number: int) -> None:
    """Raise unless there is one optimizer for each loss of a policy.

    Args:
        module: The policy.
        optimizers: The optimizers that ``configure_optimizers`` returned.
        number: Number of its losses.

    Raises:
        ValueError: If there are more or fewer, or one of them can train nothing here.
    """
    name = f"configure_optimizers of {type(module).__name__}"
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    require(len(optimizers) == number, name, f"one that returns {number}, one for each loss", kinds)
    owned = set(map(id, module.parameters()))
    for optimizer in optimizers:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        require(
            not owned.isdisjoint(map(id, trained)),
            name,
            "one that returns optimizers of the policy's parameters",
            kinds,
        )
        closure = "one without LBFGS, which needs the loss several times in a step"
        require(not isinstance(optimizer, LBFGS), name, closure, kinds)


def warn_of_epochs_without_trainer(configs: Sequence[LRSchedulerConfig]) -> None:
    """Warn about schedulers that a loop without a Trainer, which has no epochs, does not step."""
    for config in configs:
        logger.warning(
            "without a Trainer there are no epochs, so nothing steps the %s of configure_optimizers: return it with "
            'interval="step", or step it yourself',
            type(config.scheduler).__name__,
        )


Settings = list[dict[str, Any]]
"""The settings of each group of an optimizer, its class as ``type``, and whether a scheduler sets its rate."""


def settings_of(optimizer: Optimizer) -> Settings:
    """Return the settings of an optimizer as builtins; of a learning rate that is scheduled, the initial one."""
    found, builtin = [], (bool, int, float, str, type(None))
    for group in optimizer.param_groups:
        own = {"type": type(optimizer).__name__, "is_scheduled": "initial_lr" in group}
        for name, value in group.items():
            values = value if isinstance(value, tuple) else [value]
            if name != "initial_lr" and all(isinstance(one, builtin) for one in values):
                own[name] = value
        found.append(own | ({"lr": group["initial_lr"]} if "initial_lr" in group else {}))
    return found
