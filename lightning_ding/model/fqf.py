"""The Q-network of FQF: that of IQN, with quantile levels that a layer proposes for each observation.

Shapes: B batch, A actions, F features, N parts of [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import check_action_shape, full_precision, hidden_layers
from lightning_ding.model.iqn import QuantileHead
from lightning_ding.registry import MODEL_REGISTRY


class FractionProposal(nn.Module):
    """A layer that divides [0, 1] into N parts for each observation; nearly equal ones at first.

    Args:
        input_size: Number of features F.
        num_quantiles: Number of parts N, >= 1.
    """

    def __init__(self, input_size: int, num_quantiles: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_size, num_quantiles)
        nn.init.xavier_uniform_(self.layer.weight, gain=0.01)
        nn.init.zeros_(self.layer.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the parts, ascending from 0 to 1, shape (B, N + 1), and the entropy of their sizes, (B,).

        Args:
            features: Features, shape (B, F).
        """
        log_size = full_precision(self.layer(features)).log_softmax(1)
        size = log_size.exp()
        ends = torch.cat([size.new_zeros(size.shape[0], 1), size.cumsum(1)], 1)
        return ends, -(size * log_size).sum(1)


@MODEL_REGISTRY.register("fqf")
class FQF(nn.Module):
    """Encoder and heads that compute every action's return at proposed quantile levels (Yang et al. 2019).

    See https://arxiv.org/abs/1911.02140. ``fraction`` proposes the levels; ``encoder`` and ``head`` are trained by
    another loss. The arguments and errors that are not listed here are those of :class:`IQN`.

    Args:
        num_quantiles: Number N of parts of [0, 1], >= 1.

    Raises:
        TypeError: If ``action_shape`` is not an integer.

    Example:
        >>> FQF(obs_shape=4, action_shape=2, num_quantiles=8)(torch.zeros(3, 4))["q"].shape
        torch.Size([3, 2, 8])
    """

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
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        layers = 1 if head_layer_num is None else head_layer_num
        width, layers = hidden_layers("head", features, head_hidden_size, layers)
        options = (width, layers, activation, dueling, layer_norm, quantile_embedding_size)
        self.head = QuantileHead(features, action_shape, *options)
        self.fraction = FractionProposal(features, num_quantiles)

    def forward(self, obs: Any) -> dict[str, Tensor]:
        """Return mean returns ``logit`` (B, A), and values ``q`` (B, A, N) at the middles ``tau`` (B, N) of the parts.

        No gradient flows through the proposed levels.
        """
        features = self.encoder(obs)
        with torch.no_grad():
            ends, _ = self.fraction(features)
        tau = (ends[:, :-1] + ends[:, 1:]) / 2
        q = self.head(features, tau)
        return {"logit": (q * (ends[:, 1:] - ends[:, :-1]).unsqueeze(1)).sum(2), "q": q, "tau": tau}

    def propose(self, obs: Any) -> dict[str, Tensor]:
        """Return what the loss of the proposed levels needs; only they and their entropy have a gradient.

        Returns:
            ``ends`` (B, N + 1) of the parts, ``entropy`` (B,) of their sizes, and the values ``q_ends`` (B, A, N - 1)
            at the inner ends and ``q_middles`` (B, A, N) at the middles of the parts.
        """
        with torch.no_grad():
            features = self.encoder(obs)
        ends, entropy = self.fraction(features)
        with torch.no_grad():
            tau = torch.cat([ends[:, 1:-1], (ends[:, :-1] + ends[:, 1:]) / 2], 1)
            q = cast(Tensor, self.head(features, tau))
        q_ends, q_middles = q.split([ends.shape[1] - 2, ends.shape[1] - 1], 2)
        return {"ends": ends, "entropy": entropy, "q_ends": q_ends, "q_middles": q_middles}
