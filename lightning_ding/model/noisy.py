"""Linear layers with noise on their weights (Fortunato et al. 2018, https://arxiv.org/abs/1706.10295).

Whether a forward pass is noisy is an argument, ``noisy``: both collecting and evaluating run in eval mode, and only the
first of them explores. The noise stays until ``reset_noise`` draws another, from the generator it is given.

Shapes: B batch, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.model.encoder import activation_function
from lightning_ding.model.head import full_precision


class NoisyLinear(nn.Module):
    """A linear layer with factorised noise: w = mu + sigma * f(e_out) f(e_in), f(x) = sgn(x) sqrt(abs(x)) (eq. 10, 11).

    There is no noise before the first ``reset_noise``. It is no part of the state dict.

    Args:
        input_size: I.
        output_size: O.
        noise_std: sigma at the start, times the square root of I (section 3.2), > 0.
    """

    noise: Tensor

    def __init__(self, input_size: int, output_size: int, noise_std: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(input_size)
        self.weight_mu = nn.Parameter(torch.empty(output_size, input_size).uniform_(-bound, bound))
        self.bias_mu = nn.Parameter(torch.empty(output_size).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((output_size, input_size), noise_std * bound))
        self.bias_sigma = nn.Parameter(torch.full((output_size,), noise_std * bound))
        self.register_buffer("noise", torch.zeros(input_size + output_size), persistent=False)

    def forward(self, x: Tensor, noisy: bool = False) -> Tensor:
        """Return outputs, shape (B, O), for ``x``, shape (B, I); of the mean weights unless ``noisy``."""
        if not noisy:
            return F.linear(x, self.weight_mu, self.bias_mu)
        noise_in, noise_out = self.noise.split([self.weight_mu.shape[1], self.weight_mu.shape[0]])
        weight = self.weight_mu + self.weight_sigma * torch.outer(noise_out, noise_in)
        return F.linear(x, weight, self.bias_mu + self.bias_sigma * noise_out)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw f(e_in) and f(e_out) anew."""
        e = rng.standard_normal(len(self.noise), dtype=np.float32)
        self.noise.copy_(torch.from_numpy(np.copysign(np.sqrt(np.abs(e)), e)))


class NoisyMLP(nn.Module):
    """Noisy linear layers with an activation between them; the output is 32-bit under mixed precision too.

    Args:
        sizes: Widths, input first.
        activation: relu, tanh, elu, gelu or silu.
        noise_std: See ``NoisyLinear``.
        layer_norm: Whether to normalise each hidden layer before its activation.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", noise_std: float = 0.5, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.layers = nn.ModuleList(NoisyLinear(i, o, noise_std) for i, o in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:-1]) if layer_norm else None

    def forward(self, x: Tensor, noisy: bool = False) -> Tensor:
        """Return what the last layer gives, shape (B, sizes[-1]), for ``x``, shape (B, sizes[0])."""
        last, norms = len(self.layers) - 1, self.norms
        for number, layer in enumerate(cast("Iterable[NoisyLinear]", self.layers)):
            x = layer.forward(x, noisy)
            if number < last:
                x = self.activate(x if norms is None else norms[number](x))
        return full_precision(x)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw the noise of every layer anew."""
        for layer in cast("Iterable[NoisyLinear]", self.layers):
            layer.reset_noise(rng)
