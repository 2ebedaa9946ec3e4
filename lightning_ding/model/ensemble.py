"""Networks of one shape that see the same input, evaluated together.

Shapes: B batch, F features, E members.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import activation_function
from lightning_ding.model.head import full_precision


class EnsembleMLP(nn.Module):
    """E networks of linear layers with an activation between them; a layer of all of them is one matrix product.

    Every member starts as layers of ``nn.Linear`` do. The output is 32-bit under mixed precision too.

    Args:
        ensemble_size: E, >= 1.
        sizes: Widths, input first.
        activation: After every layer but the last: relu, tanh, elu, gelu or silu.
        layer_norm: Whether to normalise each layer but the last before its activation.

    Example:
        >>> EnsembleMLP(2, [3, 8, 1])(torch.zeros(5, 3)).shape
        torch.Size([2, 5, 1])
    """

    def __init__(
        self, ensemble_size: int, sizes: Sequence[int], activation: str = "relu", layer_norm: bool = False
    ) -> None:
        super().__init__()
        require(ensemble_size >= 1, "ensemble_size", ">= 1", ensemble_size)
        self.activate = activation_function(activation)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for layer_in, layer_out in pairwise(sizes):
            layers = [nn.Linear(layer_in, layer_out) for _ in range(ensemble_size)]
            self.weights.append(
                nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
            )  # (E, in, out)
            self.biases.append(
                nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))
            )  # (E, 1, out)
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()  # of normalised layers, (E, 1, out)
        for size in sizes[1:-1] if layer_norm else ():
            self.scales.append(nn.Parameter(torch.ones(ensemble_size, 1, size)))
            self.shifts.append(nn.Parameter(torch.zeros(ensemble_size, 1, size)))

    def forward(self, x: Tensor, members: int | None = None) -> Tensor:
        """Return what each member gives, shape (E, B, sizes[-1]), for ``x``, shape (B, sizes[0]).

        Args:
            x: Input of all members.
            members: How many to evaluate, the first ones; None means all.
        """
        weights, biases = list(self.weights), list(self.biases)
        if members is not None:
            weights, biases = [weight[:members] for weight in weights], [bias[:members] for bias in biases]
        x = x.expand(len(weights[0]), *x.shape)
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if number < len(weights) - 1:
                x = self.activate(x if len(self.scales) == 0 else self._normalised(x, number))
        return full_precision(x)

    def _normalised(self, x: Tensor, number: int) -> Tensor:
        """Return hidden layer ``number``, shape (E, B, out), normalised, then scaled and shifted."""
        scale, shift = self.scales[number][: len(x)], self.shifts[number][: len(x)]
        return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:]), scale)
