"""Networks that tell what is new: random features, and the embeddings of Never Give Up.

Papers: Burda et al. 2018 (https://arxiv.org/abs/1810.12894), section 2.2; Badia et al. 2020
(https://arxiv.org/abs/2002.06038), section 2.

Shapes: B batch, A actions, F features or size of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.mlp import MLP

PREVIOUS = ("previous_action", "previous_reward")
"""Entries of an observation that say nothing of the env's state, from the wrapper ``previous_step``."""


class RandomFeatures(nn.Module):
    """An encoder and linear layers, with orthogonal weights.

    Args:
        obs_shape: Shape of an observation.
        encoder: Registered name of the encoder; None chooses one by the shape.
        hidden_size_list: Widths of the encoder; None for its default.
        num_layers: Number of layers after the encoder, >= 1; the last one has no activation.
        kwargs: Further arguments of ``encoder_for``: ``activation``, ``layer_norm`` and ``encoder_kwargs``.
    """

    def __init__(
        self, obs_shape: Any, encoder: str | None, hidden_size_list: Any, num_layers: int, **kwargs: Any
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_shape, encoder, hidden_size_list, kwargs.pop("activation", "relu"), **kwargs)
        size = self.encoder.output_size
        self.head = MLP([size] * (num_layers + 1), "relu", activate_last=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, obs: Any) -> Tensor:
        """Return features, shape (B, F), of observations."""
        features: Tensor = self.head(self.encoder(obs))
        return features


class Novelty(nn.Module):
    """Embeddings of what actions can change (section 2), and a predictor of random features (Burda et al. 2018).

    Args:
        obs_shape: Shape of an observation; its entries ``previous_action`` and ``previous_reward`` are left out.
        action_shape: Number of actions A.
        hidden_size_list: Widths of the encoders; None for their default.
        embedding_size: F, >= 1.
        encoder: Name of a registered encoder; None chooses one by the shape.
        kwargs: Further arguments of ``encoder_for``: ``activation``, ``layer_norm`` and ``encoder_kwargs``.
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        hidden_size_list: Sequence[int] | None,
        embedding_size: int,
        encoder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        require(embedding_size >= 1, "embedding_size", ">= 1", embedding_size)
        shape = obs_shape
        if isinstance(shape, Mapping):
            shape = {name: part for name, part in shape.items() if name not in PREVIOUS}
        below = encoder_for(shape, encoder, hidden_size_list, **{"activation": "relu", **kwargs})
        self.embedding = nn.Sequential(below, nn.Linear(below.output_size, embedding_size))
        self.inverse_model = MLP((2 * embedding_size, 128, action_shape), "relu", activate_last=False)
        options = (shape, encoder, hidden_size_list)
        self.target = RandomFeatures(*options, num_layers=1, **kwargs).requires_grad_(False)
        self.predictor = RandomFeatures(*options, num_layers=2, **kwargs)

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the embeddings, shape (B, F), and the errors of the predictor, shape (B,), of observations."""
        return self.embedding(obs), self.error(obs)

    def error(self, obs: Any) -> Tensor:
        """Return the squared error of the predictor, shape (B,)."""
        with torch.no_grad():
            target = self.target(obs)
        error: Tensor = (self.predictor(obs) - target).square().mean(1)
        return error

    def inverse_error(self, obs: Any, next_obs: Any, action: Tensor) -> Tensor:
        """Return the negative log-likelihood of actions, shape (B,), given the embeddings before and after them."""
        before, after = self.embedding(nested.concatenate([obs, next_obs])).chunk(2)
        pair = torch.cat([before, after], 1)
        return F.cross_entropy(self.inverse_model(pair), action.long(), reduction="none")
