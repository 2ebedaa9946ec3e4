"""The layers of SimBa as an encoder of vectors for any policy; ``residual`` has those of continuous actions.

Shapes: B batch, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import flattened
from lightning_ding.model.mlp import activation_function
from lightning_ding.model.residual import EXPANSION
from lightning_ding.registry import ENCODER_REGISTRY


class SimbaBlock(nn.Module):
    """A residual block: x + L a(L N(x)), with layer normalisation N and an activation a between two linear layers L.

    Args:
        width: Number of features.
        activation: Activation between the layers.
    """

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.norm, self.activate = nn.LayerNorm(width), activation_function(activation)
        self.widen, self.narrow = nn.Linear(width, EXPANSION * width), nn.Linear(EXPANSION * width, width)
        for layer in (self.widen, self.narrow):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (B, F), for features of the same shape."""
        narrow: Tensor = self.narrow(self.activate(self.widen(self.norm(x))))
        return x + narrow


@ENCODER_REGISTRY.register("simba")
class SimbaEncoder(nn.Module):
    """A linear layer, residual blocks and a layer normalisation over a flattened vector (Lee et al. 2024, section 4).

    See https://arxiv.org/abs/2410.09754. The paper also normalises observations: ``norm_obs`` of the datamodule.

    Args:
        obs_shape: Size, or shape to flatten.
        hidden_size_list: Width of the first layer and of each block, which are equal; None for (128, 128), one block.
        activation: Activation inside the blocks: relu, tanh, elu, gelu or silu.

    Raises:
        ValueError: If the widths differ, or there are none.
    """

    def __init__(
        self,
        obs_shape: int | Sequence[int],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        widths = (128, 128) if hidden_size_list is None else tuple(hidden_size_list)
        require(len(set(widths)) == 1, "encoder_hidden_size_list", "equal widths with the encoder simba", list(widths))
        size = obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape)
        self.output_size = widths[0]
        self.first, self.last = nn.Linear(size, self.output_size), nn.LayerNorm(self.output_size)
        nn.init.orthogonal_(self.first.weight)
        nn.init.zeros_(self.first.bias)
        self.blocks = nn.Sequential(*(SimbaBlock(self.output_size, activation) for _ in widths[1:]))

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, *obs_shape)."""
        features: Tensor = self.last(self.blocks(self.first(flattened(obs))))
        return features
