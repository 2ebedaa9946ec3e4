"""The Q-network of IQN, and the part of it that embeds quantile levels, which FQF has too.

Shapes: B batch, A actions, F features, N quantile levels, K levels of an action's value, C cosines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, DuelingHead, check_action_shape, hidden_layers
from lightning_ding.registry import MODEL_REGISTRY


class QuantileHead(nn.Module):
    """The value of each action's return at any quantile level (Dabney et al. 2018b, section 3.1).

    See https://arxiv.org/abs/1806.06923. Features are multiplied by an embedding of the level, before the layers that
    compute the values. The embedding is relu of a linear layer of cos(pi * i * tau) with i from 1 to C.

    Args:
        input_size: Number of features F.
        action_size: Number of actions A.
        hidden_size: Width of the hidden layers.
        layer_num: Number of hidden layers, >= 0.
        activation: Activation of the hidden layers.
        dueling: Use separate streams for the state and the actions.
        layer_norm: Apply layer normalisation before each activation.
        embedding_size: Number of cosines C, >= 1.

    Example:
        >>> QuantileHead(8, 2, 8)(torch.zeros(3, 8), torch.rand(3, 5)).shape
        torch.Size([3, 2, 5])
    """

    frequency: Tensor

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_size: int,
        layer_num: int = 0,
        activation: str = "relu",
        dueling: bool = False,
        layer_norm: bool = False,
        embedding_size: int = 64,
    ) -> None:
        super().__init__()
        require(embedding_size >= 1, "quantile_embedding_size", ">= 1", embedding_size)
        self.register_buffer("frequency", math.pi * torch.arange(1.0, embedding_size + 1), persistent=False)
        self.embedding = nn.Linear(embedding_size, input_size)
        head_class = DuelingHead if dueling else DiscreteHead
        self.values: nn.Module = head_class(input_size, action_size, hidden_size, layer_num, activation, layer_norm)

    def forward(self, features: Tensor, tau: Tensor) -> Tensor:
        """Return values, shape (B, A, N), for features, shape (B, F), and levels in [0, 1], shape (B, N)."""
        embedded = self.embedding(torch.cos(tau.unsqueeze(2) * self.frequency)).relu()  # (B, N, F)
        rows = (features.unsqueeze(1) * embedded).flatten(0, 1)  # (B * N, F)
        return cast(Tensor, self.values(rows).unflatten(0, tau.shape).transpose(1, 2))


@MODEL_REGISTRY.register("iqn")
class IQN(nn.Module):
    """Encoder and head that compute every action's return at any quantile level (Dabney et al. 2018b).

    See https://arxiv.org/abs/1806.06923. The arguments and errors that are not listed here are those of :class:`DQN`.

    Args:
        action_shape: Number of actions.
        head_layer_num: Number of hidden layers after the product of features and embedding, >= 0; None means 1, as in
            the paper.
        num_quantiles: Number of levels K whose mean is an action's value, >= 1.
        quantile_embedding_size: Number of cosines that describe a level, >= 1.

    Raises:
        TypeError: If ``action_shape`` is not an integer.

    Example:
        >>> IQN(obs_shape=4, action_shape=2, num_quantiles=4)(torch.zeros(3, 4))["tau"][0]
        tensor([0.1250, 0.3750, 0.6250, 0.8750])
    """

    middles: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        num_quantiles: int = 32,
        quantile_embedding_size: int = 64,
        dueling: bool = False,
        head_hidden_size: int | None = None,
        head_layer_num: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        require(num_quantiles >= 1, "num_quantiles", ">= 1", num_quantiles)
        self.register_buffer("middles", (torch.arange(num_quantiles) + 0.5) / num_quantiles, persistent=False)
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        layers = 1 if head_layer_num is None else head_layer_num
        width, layers = hidden_layers("head", features, head_hidden_size, layers)
        options = (width, layers, activation, dueling, layer_norm, quantile_embedding_size)
        self.head = QuantileHead(features, action_shape, *options)

    def forward(self, obs: Any, tau: Tensor | None = None) -> dict[str, Tensor]:
        """Return the values ``q`` (B, A, N) at quantile levels, their means ``logit`` (B, A), and the levels ``tau``.

        Args:
            obs: B observations.
            tau: Quantile levels in [0, 1], shape (B, N); None means the middles of K equal parts of [0, 1].
        """
        features = self.encoder(obs)
        tau = self.middles.expand(features.shape[0], -1) if tau is None else tau
        q = self.head(features, tau)
        return {"logit": q.mean(2), "q": q, "tau": tau}
