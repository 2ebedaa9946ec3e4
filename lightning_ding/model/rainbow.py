"""The Q-network of Rainbow, and its noisy linear layers (Fortunato et al. 2018, https://arxiv.org/abs/1706.10295).

The argument ``noisy`` of a forward pass decides whether noise is used: the network is in eval mode both when it
collects and when it is evaluated, and only collecting needs noise. ``reset_noise`` draws new noise.

Shapes: B batch, I inputs, O outputs, A actions, N atoms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.c51 import categorical_output, duel, make_support
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import check_action_shape, full_precision, head_size
from lightning_ding.model.mlp import activation_function
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("rainbowdqn")
class RainbowDQN(nn.Module):
    """Encoder and noisy dueling head that compute the distribution of every action's return (Hessel et al. 2018).

    See https://arxiv.org/abs/1710.02298. The arguments and errors that are not listed here are those of :class:`DQN`.

    Args:
        action_shape: Number of actions.
        v_min: Value of the first atom, < ``v_max``.
        v_max: Value of the last atom.
        n_atom: Number of atoms N, >= 2.
        noise_std: Initial scale of the noise, > 0; see ``NoisyLinear``.
        head_layer_num: Number of hidden layers of each stream of the head; None means 1.

    Raises:
        TypeError: If ``action_shape`` is not an integer.

    Example:
        >>> import torch
        >>> RainbowDQN(obs_shape=4, action_shape=2)(torch.zeros(3, 4), noisy=True)["logit"].shape
        torch.Size([3, 2])
    """

    support: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        v_min: float = -10.0,
        v_max: float = 10.0,
        n_atom: int = 51,
        noise_std: float = 0.5,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        require(noise_std > 0, "noise_std", "> 0", noise_std)
        self.register_buffer("support", make_support(v_min, v_max, n_atom), persistent=False)
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling=True)
        hidden = [features, *[width] * layers]
        self.shape = (action_shape, n_atom)
        self.advantage = NoisyMLP([*hidden, action_shape * n_atom], activation, noise_std, layer_norm)
        self.value = NoisyMLP([*hidden, n_atom], activation, noise_std, layer_norm)

    def forward(self, obs: Any, noisy: bool = False) -> dict[str, Tensor]:
        """Return the mean returns ``logit`` (B, A), and ``distribution`` and ``log_distribution`` (B, A, N).

        Args:
            obs: B observations.
            noisy: Use the noise of the last ``reset_noise``; otherwise the mean weights.
        """
        features = self.encoder(obs)
        advantage = self.advantage(features, noisy).unflatten(1, self.shape)
        return categorical_output(duel(self.value(features, noisy), advantage), self.support)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for every layer."""
        self.advantage.reset_noise(rng)
        self.value.reset_noise(rng)


class NoisyLinear(nn.Module):
    """A linear layer with factorised noise: w = mu + sigma * f(e_out) f(e_in), f(x) = sgn(x) sqrt(abs(x)) (eq. 10, 11).

    The noise is 0 before the first ``reset_noise``, and is not part of the state dict.

    Args:
        input_size: Number of inputs I.
        output_size: Number of outputs O.
        noise_std: Initial sigma times the square root of I (section 3.2), > 0.
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
        """Return outputs, shape (B, O), for ``x``, shape (B, I), with the mean weights unless ``noisy``."""
        if not noisy:
            return F.linear(x, self.weight_mu, self.bias_mu)
        noise_in, noise_out = self.noise.split([self.weight_mu.shape[1], self.weight_mu.shape[0]])
        weight = self.weight_mu + self.weight_sigma * torch.outer(noise_out, noise_in)
        return F.linear(x, weight, self.bias_mu + self.bias_sigma * noise_out)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw new f(e_in) and f(e_out)."""
        e = rng.standard_normal(len(self.noise), dtype=np.float32)
        self.noise.copy_(torch.from_numpy(np.copysign(np.sqrt(np.abs(e)), e)))


class NoisyHead(nn.Module):
    """A head of noisy layers for action values, with separate streams for the state and the actions if ``dueling``.

    The arguments that are not listed are those of :class:`DuelingHead`.

    Args:
        dueling: Return the sum of a state value and the actions' advantages.
        noise_std: Initial scale of the noise, > 0; see ``NoisyLinear``.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 1,
        activation: str = "relu",
        layer_norm: bool = False,
        dueling: bool = True,
        noise_std: float = 0.5,
    ) -> None:
        super().__init__()
        require(noise_std > 0, "noise_std", "> 0", noise_std)
        hidden = [input_size, *[hidden_size] * layer_num]
        self.advantage = NoisyMLP([*hidden, action_size], activation, noise_std, layer_norm)
        self.value = NoisyMLP([*hidden, 1], activation, noise_std, layer_norm) if dueling else None

    def forward(self, features: Tensor, noisy: bool = False) -> Tensor:
        """Return action values, shape (B, A), for features, shape (B, F), with the mean weights unless ``noisy``."""
        advantage: Tensor = self.advantage(features, noisy)
        if self.value is None:
            return advantage
        return cast(Tensor, self.value(features, noisy) + advantage - advantage.mean(1, keepdim=True))

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for every layer."""
        self.advantage.reset_noise(rng)
        if self.value is not None:
            self.value.reset_noise(rng)


class NoisyMLP(nn.Module):
    """Noisy linear layers with activations between them; the output is 32-bit also under mixed precision.

    Args:
        sizes: Widths of the input and of each layer.
        activation: Activation of all layers but the last: relu, tanh, elu, gelu or silu.
        noise_std: Initial scale of the noise, > 0; see ``NoisyLinear``.
        layer_norm: Apply layer normalisation before each activation.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", noise_std: float = 0.5, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.activate = activation_function(activation)
        self.layers = nn.ModuleList(NoisyLinear(i, o, noise_std) for i, o in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:-1]) if layer_norm else None

    def forward(self, x: Tensor, noisy: bool = False) -> Tensor:
        """Return outputs, shape (B, sizes[-1]), for ``x``, shape (B, sizes[0])."""
        last, norms = len(self.layers) - 1, self.norms
        for number, layer in enumerate(self.layers):
            x = layer(x, noisy)
            if number < last:
                x = self.activate(x if norms is None else norms[number](x))
        return full_precision(x)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for every layer."""
        for layer in cast("Iterable[NoisyLinear]", self.layers):
            layer.reset_noise(rng)
