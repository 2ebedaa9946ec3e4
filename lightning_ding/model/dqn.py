"""The Q-network of DQN.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, DuelingHead, MultiHead, head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("dqn")
class DQN(nn.Module):
    """Encoder and head that compute the value of every action of an observation.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions, or a number for each dimension of a multi-discrete action.
        encoder: Name of a registered encoder; None chooses one by the shape.
        encoder_hidden_size_list: Widths of the encoder's layers; None for the encoder's default.
        dueling: Use a dueling head with separate streams for the state and the actions.
        head_hidden_size: Width of the head's hidden layers; None for the encoder's output size.
        head_layer_num: Number of hidden layers of the head; None means 1 with ``dueling`` or ``head_hidden_size``,
            otherwise 0.
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before the activation of each hidden layer, also in the encoder.
        encoder_kwargs: Further keyword arguments of the encoder, see ``create_encoder``.
        noise: Use noisy layers in the head.
        noise_std: Initial scale of the noise, > 0; see ``NoisyLinear``.

    Raises:
        ValueError: If a size is out of its range, or a head without hidden layers is given a ``head_hidden_size`` that
            is not the size of its input.

    Example:
        >>> import torch
        >>> DQN(obs_shape=4, action_shape=2)(torch.zeros(3, 4))["logit"].shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int | Sequence[int],
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        dueling: bool = True,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        noise: bool = False,
        noise_std: float = 0.5,
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling)
        head_class: Any = DuelingHead if dueling else DiscreteHead
        options: tuple[Any, ...] = (width, layers, activation, layer_norm)
        if noise:
            from lightning_ding.model.rainbow import NoisyHead

            head_class, options = NoisyHead, (*options, dueling, noise_std)
        if isinstance(action_shape, int):
            self.head: nn.Module = head_class(features, action_shape, *options)
        else:
            self.head = MultiHead([head_class(features, size, *options) for size in action_shape])

    def forward(self, obs: Any, noisy: bool = False) -> dict[str, Tensor | list[Tensor]]:
        """Return ``{"logit": values}``: shape (B, A), or a list of such tensors for a multi-discrete action.

        Args:
            obs: B observations.
            noisy: Use the noise of the last :meth:`reset_noise`, with ``noise``; otherwise the mean weights.
        """
        features = self.encoder(obs)
        return {"logit": self.head(features, noisy=True) if noisy else self.head(features)}

    def reset_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for every noisy layer."""
        for head in self.head.heads if isinstance(self.head, MultiHead) else [self.head]:
            cast(Any, head).reset_noise(rng)
