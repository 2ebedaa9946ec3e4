"""Fully connected layers, and the activation functions that a config may name.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, starmap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.utils.private_api import linear_weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
}


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name.

    Raises:
        ValueError: If the name is unknown.
    """
    require(name in ACTIVATIONS, "activation", f"one of {sorted(ACTIVATIONS)}", name)
    return ACTIVATIONS[name]


class MLP(nn.Module):
    """Linear layers with activations between them.

    Args:
        sizes: Widths of the input and of each layer.
        activation: Activation of the layers: relu, tanh, elu, gelu or silu.
        activate_last: Apply the activation also to the last layer.
        layer_norm: Apply layer normalisation before each activation (Ba et al. 2016,
            https://arxiv.org/abs/1607.06450).
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = True, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.layers = nn.ModuleList(starmap(nn.Linear, pairwise(sizes)))
        self.activated_layers = len(self.layers) - (not activate_last)
        activated = sizes[1 : 1 + self.activated_layers]
        self.norms = nn.ModuleList(map(nn.LayerNorm, activated)) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs, shape (B, sizes[-1]), for ``x``, shape (B, sizes[0])."""
        norms = self.norms
        for number, layer in enumerate(self.layers):
            weights = linear_weights(layer)
            x = layer(x) if weights is None else F.linear(x, *weights)
            if number < self.activated_layers:
                x = self.activate(x if norms is None else norms[number](x))
        return x
