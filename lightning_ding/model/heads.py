"""Heads that map features to action values.

Shapes: B batch, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.mlp import MLP

HALF_PRECISION = (torch.bfloat16, torch.float16)


def full_precision(x: Tensor) -> Tensor:
    """Convert a 16-bit output of a layer under mixed precision to 32 bits; return other tensors unchanged.

    Probabilities and temporal differences need more precision than the three digits of bfloat16.
    """
    return x.float() if x.dtype in HALF_PRECISION else x


class DiscreteHead(MLP):
    """Hidden layers and a linear output layer for action values.

    The values are 32-bit also under mixed precision.

    Args:
        input_size: Number of features F.
        action_size: Number of actions A.
        hidden_size: Width of the hidden layers.
        layer_num: Number of hidden layers, >= 0.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.
        hidden_size_list: Width of each hidden layer, in place of ``hidden_size`` and ``layer_num``.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 0,
        activation: str = "relu",
        layer_norm: bool = False,
        hidden_size_list: Sequence[int] | None = None,
    ) -> None:
        widths = [hidden_size] * layer_num if hidden_size_list is None else hidden_size_list
        super().__init__([input_size, *widths, action_size], activation, activate_last=False, layer_norm=layer_norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return action values, shape (B, A), for features, shape (B, F)."""
        return full_precision(super().forward(x))


class DuelingHead(nn.Module):
    """Sum of a state value and the actions' advantages (Wang et al. 2016, eq. 9, https://arxiv.org/abs/1511.06581).

    The arguments are those of each of the two streams, which are :class:`DiscreteHead`.
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
        """Return V + A - mean(A), shape (B, A), for features, shape (B, F)."""
        advantage = self.advantage(features)
        return cast(Tensor, self.value(features) + advantage - advantage.mean(1, keepdim=True))


class MultiHead(nn.Module):
    """One head for each dimension of a multi-discrete action.

    Args:
        heads: Heads in the order of the action's dimensions.
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor, **options: Any) -> list[Tensor]:
        """Return the action values of each dimension, shapes (B, A_i), for features, shape (B, F).

        Args:
            features: B rows of features.
            options: Further arguments of each head.
        """
        return [head(features, **options) for head in self.heads]


def check_action_shape(action_shape: Any) -> None:
    """Raise if the action has several dimensions.

    Raises:
        TypeError: If ``action_shape`` is not an integer.
    """
    if not isinstance(action_shape, int):
        raise TypeError(f"action_shape must be a number of discrete actions, got {action_shape!r}")


def head_size(features: int, hidden_size: int | None, layer_num: int | None, dueling: bool) -> tuple[int, int]:
    """Return the width and the number of hidden layers of a Q-network's head; see :func:`hidden_layers`.

    A head with two streams, ``dueling``, has one hidden layer by default.
    """
    return hidden_layers("head", features, hidden_size, 1 if dueling and layer_num is None else layer_num)


def hidden_layers(name: str, input_size: int, hidden_size: int | None, layer_num: int | None) -> tuple[int, int]:
    """Return the width and the number of hidden layers of a head.

    Args:
        name: Name of the head in the config, for errors.
        input_size: Number of features F.
        hidden_size: Width; None means F.
        layer_num: Number of hidden layers, >= 0; None means 1 if ``hidden_size`` is given, otherwise 0.

    Raises:
        ValueError: If a size is out of its range, or a head without hidden layers is given a width other than F.

    Example:
        >>> hidden_layers("head", 64, None, None), hidden_layers("head", 64, 32, None), hidden_layers("head", 64, 64, 0)
        ((64, 0), (32, 1), (64, 0))
    """
    layers = int(hidden_size is not None) if layer_num is None else layer_num
    require(layers >= 0, f"{name}_layer_num", ">= 0", layers)
    width = input_size if hidden_size is None else hidden_size
    require(width >= 1, f"{name}_hidden_size", ">= 1", width)
    allowed = f"None or {input_size}, the size of its input, when the head has no hidden layers"
    require(layers > 0 or width == input_size, f"{name}_hidden_size", allowed, hidden_size)
    return width, layers


def check_widths(name: str, widths: Sequence[int] | None, **others: int | None) -> None:
    """Raise if the widths of the hidden layers of a head are out of their range, or described twice.

    Args:
        name: Name of the widths in the config.
        widths: Width of each hidden layer, >= 1; None if they are described by the other options.
        others: The other options by name, None where they are left at their default.

    Raises:
        ValueError: If a width is below 1, or another option is given too.
    """
    if widths is None:
        return
    require(all(width >= 1 for width in widths), name, "None, or widths >= 1", list(widths))
    for other, given in others.items():
        require(given is None, other, f"left at its default with {name}", given)
