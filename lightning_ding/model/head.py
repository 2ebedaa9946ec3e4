"""Heads: features in, action values out.

Shapes: B batch, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lightning_ding.model.encoder import MLP

HALF_PRECISION = (torch.bfloat16, torch.float16)


def full_precision(x: Tensor) -> Tensor:
    """Return ``x`` in 32 bits if it is in 16, as layers under mixed precision give it; otherwise as it is.

    Probabilities and temporal differences need more than the three digits of bfloat16.
    """
    return x.float() if x.dtype in HALF_PRECISION else x


class DiscreteHead(MLP):
    """Hidden layers of one width and a linear layer: features (B, F) in, action values (B, A) out.

    The values are 32-bit under mixed precision too.

    Args:
        input_size: F.
        action_size: A.
        hidden_size: Width of the hidden layers.
        layer_num: How many hidden layers; 0 for the linear layer alone.
        activation: After each hidden layer.
        layer_norm: Whether to normalise each hidden layer before its activation.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 0,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        sizes = [input_size, *[hidden_size] * layer_num, action_size]
        super().__init__(sizes, activation, activate_last=False, layer_norm=layer_norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return action values, shape (B, A), of features, shape (B, F)."""
        return full_precision(super().forward(x))


class DuelingHead(nn.Module):
    """A state value plus advantages (Wang et al. 2016, eq. 9, https://arxiv.org/abs/1511.06581).

    Args:
        input_size: F.
        action_size: A.
        hidden_size: Width of the hidden layers of both streams.
        layer_num: How many hidden layers in each stream.
        activation: After each hidden layer.
        layer_norm: Whether to normalise each hidden layer before its activation.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 1,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.advantage = DiscreteHead(input_size, action_size, hidden_size, layer_num, activation, layer_norm)
        self.value = DiscreteHead(input_size, 1, hidden_size, layer_num, activation, layer_norm)

    def forward(self, features: Tensor) -> Tensor:
        """Return V + A - mean(A), shape (B, A), of features, shape (B, F)."""
        advantage = self.advantage(features)
        return cast(Tensor, self.value(features) + advantage - advantage.mean(1, keepdim=True))


class MultiHead(nn.Module):
    """One head for each dimension of a multi-discrete action.

    Args:
        heads: The heads, in the order of the action's dimensions.
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> list[Tensor]:
        """Return action values of each dimension, shapes (B, A_i)."""
        return [head(features) for head in self.heads]
