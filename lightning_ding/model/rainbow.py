"""The Q-network of Rainbow.

Shapes: B batch, A actions, N atoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.c51 import categorical_output, make_support
from lightning_ding.model.distributional import duel
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.noisy import NoisyMLP
from lightning_ding.model.q_network import check_action_shape, head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("rainbowdqn")
class RainbowDQN(nn.Module):
    """Encoder and noisy dueling head: the distribution of every action's return (Hessel et al. 2018).

    See https://arxiv.org/abs/1710.02298.

    Args:
        obs_shape: A size, a shape, or a dict of them; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions.
        encoder: A registered encoder; None chooses by the shape.
        encoder_hidden_size_list: Widths of the encoder; None takes the encoder's default.
        v_min: Value of the first atom, < v_max.
        v_max: Value of the last atom.
        n_atom: N, >= 2.
        noise_std: Size of the noise at the start, see ``NoisyLinear``, > 0.
        head_hidden_size: Width of the head's hidden layers; the encoder's output size if None.
        head_layer_num: Hidden layers of both streams of the head; None means 1.
        activation: relu, tanh, elu, gelu or silu.
        layer_norm: Whether to normalise each hidden layer, those of the encoder too, before its activation.
        encoder_kwargs: Further arguments of the encoder by name, see ``create_encoder``.

    Raises:
        TypeError: If ``action_shape`` is not a number.
        ValueError: If a size is out of its range, or ``head_hidden_size`` is given to a head without hidden layers.

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
        """Return ``logit`` (B, A), the mean returns, and ``distribution`` and ``log_distribution``, (B, A, N).

        Args:
            obs: Observations.
            noisy: Use the noise that ``reset_noise`` drew; otherwise the mean weights.
        """
        features = self.encoder(obs)
        advantage = self.advantage(features, noisy).unflatten(1, self.shape)
        return categorical_output(duel(self.value(features, noisy), advantage), self.support)

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw the noise of every layer anew."""
        self.advantage.reset_noise(rng)
        self.value.reset_noise(rng)
