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
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_number: dict[int, list[Tensor]] = {}  # weights that were reset have made fewer steps than the others
            for one in group["params"]:
                if one.grad is not None:
                    by_number.setdefault(self._count(one), []).append(one)
            for number, parameters in by_number.items():
                self._step_together(group, parameters, number)
        return loss

    def _count(self, parameter: Tensor) -> int:
        """Return the number of a parameter's step, from 1."""
        state = self.state[parameter]
        if not state:
            state |= {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        state["step"] += 1
        return int(state["step"])

    def _step_together(self, group: dict[str, Any], parameters: list[Tensor], number: int) -> None:
        (beta1, beta2), states = group["betas"], [self.state[one] for one in parameters]
        gradients: Any = [one.grad for one in parameters]
        if group["agc"] is not None:
            gradients = torch._foreach_mul(gradients, clip_factors(parameters, gradients, group["agc"]))
        mean, square = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        torch._foreach_mul_(square, beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - beta2)
        scale: Any = torch._foreach_sqrt(torch._foreach_div(square, 1 - beta2**number))
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_lerp_(mean, torch._foreach_div(gradients, scale), 1 - beta1)
        rate = group["lr"] * min(1.0, number / group["warmup"] if group["warmup"] else 1.0)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_add_(parameters, mean, alpha=-rate / (1 - beta1**number))


def clip_factors(parameters: list[Tensor], gradients: list[Tensor], limit: float) -> list[Tensor]:
    """Return the factors, at most 1, that limit the norm of each gradient to a multiple of that of the weights.

    Args:
        parameters: Weights.
        gradients: Their gradients.
        limit: The multiple, > 0.
    """
    sizes = torch.stack(list(torch._foreach_norm(gradients)))
    allowed = limit * torch.stack(list(torch._foreach_norm(parameters))).clamp(min=SMALLEST_NORM)
    return list((allowed / sizes.clamp(min=torch.finfo(sizes.dtype).tiny)).clamp(max=1.0).unbind())
