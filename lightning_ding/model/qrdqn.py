"""The Q-network of QR-DQN.

Shapes: B batch, A actions, N quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.c51 import DistributionHead
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import check_action_shape, head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("qrdqn")
class QRDQN(nn.Module):
    """Encoder and head that compute quantiles of every action's return (Dabney et al. 2018, section 4).

    The arguments and errors that are not listed here are those of :class:`DQN`.

    Args:
        action_shape: Number of actions.
        num_quantiles: Number of quantiles N, >= 1.

    Raises:
        TypeError: If ``action_shape`` is not an integer.

    Example:
        >>> QRDQN(obs_shape=4, action_shape=2, num_quantiles=4)(torch.zeros(3, 4))["tau"]
        tensor([0.1250, 0.3750, 0.6250, 0.8750])
    """

    tau: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        num_quantiles: int = 32,
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
        middles = (torch.arange(num_quantiles) + 0.5) / num_quantiles
        self.register_buffer("tau", middles, persistent=False)
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling)
        options = (width, layers, activation, dueling, layer_norm)
        self.head = DistributionHead(features, action_shape, num_quantiles, *options)

    def forward(self, obs: Any) -> dict[str, Tensor]:
        """Return the mean returns ``logit`` (B, A), the quantiles ``q`` (B, A, N) and their levels ``tau`` (N,)."""
        q = self.head(self.encoder(obs))
        return {"logit": q.mean(2), "q": q, "tau": self.tau}
