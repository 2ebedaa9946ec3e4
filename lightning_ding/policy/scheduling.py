"""The scheduled values of a policy, evaluated once a round from nothing but the env steps and the budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.optim import Optimizer

from lightning_ding.policy.learn_config import ScheduleConfig
from lightning_ding.rl import Schedule

logger = logging.getLogger(__name__)

LEARNING_RATE = "lr"  # all other names of sections begin with the field of ``learn`` that they schedule


class Schedules:
    """What the ``*_scheduler`` sections of ``learn`` make of the learning rates and of weights in the loss.

    A learning rate is that of the optimizer, ``initial_lr`` of its group, times the factor. A weight in the loss comes
    as a tensor with the minibatch, so compiled code is not compiled again when it changes.

    A schedule in shares of the budget that an algorithm has by default keeps its factor at 1 in a run without a budget.

    Args:
        learn: The policy's ``config.learn``; None if it has none.
    """

    def __init__(self, learn: Any) -> None:
        self._factors: dict[str, Schedule] = {
            name.removesuffix("_scheduler"): section.schedule()
            for name, section in (vars(learn).items() if learn is not None else ())
            if isinstance(section, ScheduleConfig) and section.type != "constant"
        }
        default = None if learn is None else type(learn)()
        self._by_default = {
            name
            for name, one in self._factors.items()
            if one.unit == "budget" and getattr(default, f"{name}_scheduler").schedule() == one
        }
        self._base = {name: float(getattr(learn, name)) for name in self._factors if name != LEARNING_RATE}
        self._ended: set[str] = set()
        self.env_step = 0
        """What the values were computed for."""
        self.values: dict[str, float] = {}
        """Weights in the loss as they are now, by the name of their field in ``learn``."""
        self.tensors: dict[str, Tensor] = {}
        """The same as scalar tensors, for the loss."""

    def __bool__(self) -> bool:
        """Return whether anything is scheduled."""
        return bool(self._factors)

    @property
    def sets_learning_rate(self) -> bool:
        """Whether the learning rates are scheduled."""
        return LEARNING_RATE in self._factors

    def give_way(self) -> None:
        """Leave the learning rates to schedulers of the user's, if their schedule is no more than a default."""
        if LEARNING_RATE in self._by_default:
            del self._factors[LEARNING_RATE]
            self._by_default.remove(LEARNING_RATE)

    def apply(
        self, env_step: int, budget: int | None, optimizers: Iterable[Optimizer], device: torch.device | str = "cpu"
    ) -> None:
        """Set all values to what they are after so many env steps.

        Args:
            env_step: Env steps over all ranks before the round, >= 0.
            budget: Env steps of the whole run; needed by schedules in that unit.
            optimizers: Whose learning rates to set.
            device: Where the loss is computed.

        Raises:
            ValueError: If the budget is needed and None.
        """
        self.env_step = env_step
        in_use = {n: one for n, one in self._factors.items() if budget is not None or n not in self._by_default}
        factors = dict.fromkeys(self._factors, 1.0) | {n: one.value(env_step, budget) for n, one in in_use.items()}
        if LEARNING_RATE in factors:
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factors[LEARNING_RATE]
        values = {name: base * factors[name] for name, base in self._base.items()}
        if values != self.values or not self.tensors:
            self.values = values
            self.tensors = {name: torch.tensor(value, device=device) for name, value in values.items()}
        for name, one in in_use.items():
            if name not in self._ended and one.is_over(env_step, budget):
                self._ended.add(name)
                _warn_of_end(name, env_step, factors[name])


@rank_zero_only
def _warn_of_end(name: str, env_step: int, factor: float) -> None:
    text = "the run has outlived learn.%s, which has ended before env step %d: its factor stays at %g"
    logger.warning(text, f"{name}_scheduler", env_step, factor)
