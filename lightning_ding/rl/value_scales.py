"""Other scales for a critic's outputs, on which returns of any size are easy to predict.

Shapes: any.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from lightning_ding.rl.running import RunningMeanStd


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + abs(x)) (Webber 2013; Hafner et al. 2023, eq. 9, https://arxiv.org/abs/2301.04104).

    Example:
        >>> symlog(torch.tensor([0.0, 1.0, -1.0])).exp()
        tensor([1.0000, 2.0000, 0.5000])
    """
    return x.sign() * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(abs(x)) - 1), the inverse of :func:`symlog`.

    Example:
        >>> symexp(symlog(torch.tensor([3.0, -200.0])))
        tensor([   3.0000, -200.0000])
    """
    return x.sign() * torch.expm1(x.abs())


@torch.no_grad()
def rescale_output(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor) -> None:
    """Change a linear layer in place so that std * output + mean stays the same for a new mean and std.

    The "preserving outputs precisely" of PopArt (van Hasselt et al. 2016, eq. 3 and 4,
    https://arxiv.org/abs/1602.07714).

    Args:
        weight: Weights of the layer, shape (1, F).
        bias: Biases of the layer, shape (1,).
        mean: Old shift of the output, a scalar.
        std: Old scale of the output, > 0, a scalar.
        new_mean: New shift.
        new_std: New scale, > 0.

    Example:
        >>> weight, bias = torch.tensor([[2.0]]), torch.tensor([1.0])  # 2 x + 1 in units of 3, plus 4: 6 x + 7
        >>> rescale_output(weight, bias, *torch.tensor([4.0, 3.0, 1.0, 2.0]))
        >>> weight.item(), bias.item()  # (3 x + 3) * 2 + 1
        (3.0, 3.0)
    """
    weight.mul_(std / new_std)
    bias.mul_(std).add_(mean - new_mean).div_(new_std)


class CriticScale(RunningMeanStd):
    """Moments of returns, and an affine function after a critic whose output layer cannot be changed in place.

    The affine function is made when it is first needed. With it the network keeps its units, so the network learns
    larger returns more slowly than one whose output layer changes.

    Example:
        >>> scale = CriticScale()
        >>> rescale_output(*scale.correction(), *torch.tensor([0.0, 1.0, 4.0, 2.0]))  # (x - 4) / 2
        >>> scale.corrects, scale.gain.item(), scale.offset.item()
        (True, 0.5, -2.0)
    """

    @property
    def corrects(self) -> bool:
        """Whether there is an affine function after the critic."""
        return "gain" in self._buffers

    def correction(self) -> tuple[Tensor, Tensor]:
        """Return the factor and the summand of the affine function, scalars; it is the identity at first."""
        if not self.corrects:
            self.register_buffer("gain", torch.ones_like(self.mean))
            self.register_buffer("offset", torch.zeros_like(self.mean))
        return cast(Tensor, self.gain), cast(Tensor, self.offset)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}gain" in state_dict:
            self.correction()
        elif self.corrects:
            del self.gain, self.offset
        super()._load_from_state_dict(state_dict, prefix, *args)
