"""The layers of DreamerV3: linear layers and convolutions, each followed by a normalisation and SiLU.

Shapes: F features, G blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.rl.world_models import wide

EPS = 1e-4
TRUNCATED = 1.1368  # standard deviation of a normal distribution is this times that of one cut at two of them


@torch.no_grad()
def init_weight(weight: Tensor, inputs: int, scale: float = 1.0) -> None:
    """Fill weights with truncated normal numbers whose variance is ``scale`` squared over the number of inputs."""
    if scale == 0:
        weight.zero_()
        return
    std = TRUNCATED / math.sqrt(inputs)
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    weight.mul_(scale)


def linear(inputs: int, outputs: int, scale: float = 1.0, bias: bool = True, fan_in: int | None = None) -> nn.Linear:
    """Return a linear layer with the weights of :func:`init_weight` and biases of 0.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        scale: Factor of the weights; 0 for weights of 0.
        bias: Whether there are biases.
        fan_in: Inputs of a unit if it gets more from other layers; None for ``inputs``.
    """
    layer = nn.Linear(inputs, outputs, bias)
    init_weight(layer.weight, fan_in or inputs, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class RMSNorm(nn.Module):
    """Features divided by the root of their mean square, times a learned scale (Zhang and Sennrich 2019).

    Args:
        size: Number of features.
        axis: Axis of the features.
    """

    def __init__(self, size: int, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised features, of the shape of ``x``."""
        x = wide(x)
        if self.axis == -1 and not torch.onnx.is_in_onnx_export():  # the exporter does not know rms_norm
            return F.rms_norm(x, self.scale.shape, self.scale, EPS)
        scale = self.scale if self.axis == -1 else self.scale[:, None, None]
        # in this order, because ONNX Runtime refuses scales that the exporter has joined and multiplied by numbers
        return x * torch.rsqrt(x.square().mean(self.axis, keepdim=True) + EPS) * scale


class Dense(nn.Module):
    """A linear layer, a normalisation and SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = linear(inputs, outputs), RMSNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (..., outputs), of ``x``, shape (..., inputs)."""
        return F.silu(self.norm(self.linear(x)))


def dense(sizes: Sequence[int], outputs: int | None = None, scale: float = 1.0) -> nn.Sequential:
    """Return :class:`Dense` layers, and after them a linear layer if there are ``outputs``.

    Args:
        sizes: Widths of the input and of each layer.
        outputs: Outputs of the linear layer; None for no such layer.
        scale: Factor of the initial weights of the linear layer.
    """
    layers: list[Any] = [Dense(*pair) for pair in pairwise(sizes)]
    return nn.Sequential(*layers, *([] if outputs is None else [linear(sizes[-1], outputs, scale)]))


class BlockLinear(nn.Module):
    """A linear layer whose matrix is block-diagonal: G parts of the input give G parts of the output.

    Args:
        inputs: Number of inputs, a multiple of ``blocks``.
        outputs: Number of outputs, a multiple of ``blocks``.
        blocks: G.
        fan_in: Inputs of a unit if it gets more from other layers; None for those of its block.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int, fan_in: int | None = None) -> None:
        super().__init__()
        self.blocks = blocks
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        init_weight(self.weight, fan_in or inputs // blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs, shape (B, outputs), of ``x``, shape (B, inputs)."""
        parts = x.unflatten(-1, (self.blocks, -1)).transpose(0, 1)  # (G, B, inputs / G)
        outputs: Tensor = (parts @ self.weight).transpose(0, 1).flatten(1) + self.bias
        return outputs
