"""The optimizer of DreamerV3: LaProp, with adaptive gradient clipping and a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SMALLEST_NORM = 1e-3  # of the weights that a gradient is compared with


class LaProp(Optimizer):
    """Adam in another order: gradients are divided by their scale before they are averaged (Ziyin et al. 2020).

    See https://arxiv.org/abs/2002.04839. The gradient of each tensor is clipped first, to a multiple of the norm of its
    weights (Brock et al. 2021, https://arxiv.org/abs/2102.06171).

    Args:
        params: Parameters, or groups of them.
        lr: Step size, > 0.
        betas: Decay rates of the mean of the scaled gradient and of the mean of its square.
        eps: Added to the scale.
        weight_decay: Share of the weights that is subtracted in each step, times the step size.
        agc: Largest norm of a tensor's gradient in units of the norm of its weights; None for no limit.
        warmup: Steps in which the step size grows linearly from 0 to ``lr``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-20,
        weight_decay: float = 0.0,
        agc: float | None = None,
        warmup: int = 0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "agc": agc, "warmup": warmup}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step.

        Args:
            closure: Computes the loss again, with gradients; None uses the gradients that there are.

        Returns:
            The loss that the closure returned; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_one(weight, weight.grad, group)
        return loss

    def _step_one(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state |= {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        state["step"] += 1
        (beta1, beta2), number = group["betas"], int(state["step"])
        if group["agc"] is not None:
            gradient = gradient * clip_factor(weight, gradient, group["agc"])
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (square / (1 - beta2**number)).sqrt_().add_(group["eps"])
        mean.lerp_(gradient / scale, 1 - beta1)
        rate = group["lr"] * min(1.0, number / group["warmup"] if group["warmup"] else 1.0)
        if group["weight_decay"]:
            weight.mul_(1 - rate * group["weight_decay"])
        weight.add_(mean, alpha=-rate / (1 - beta1**number))


def clip_factor(weight: Tensor, gradient: Tensor, limit: float) -> Tensor:
    """Return the factor, at most 1, that limits the norm of a gradient to a multiple of that of the weight.

    Args:
        weight: A tensor of weights.
        gradient: Its gradient.
        limit: The multiple, > 0.
    """
    allowed, size = limit * weight.norm().clamp(min=SMALLEST_NORM), gradient.norm()
    factor: Tensor = allowed / size.clamp(min=torch.finfo(size.dtype).tiny)
    return factor.clamp(max=1.0)
