"""The Q-network of DQN.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.head import DiscreteHead, DuelingHead, MultiHead
from lightning_ding.model.q_network import head_size
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("dqn")
class DQN(nn.Module):
    """Encoder and head: the value of every action of an observation.

    Args:
        obs_shape: A size, a shape, or a dict of them; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions, or a number for each dimension of a multi-discrete action.
        encoder: A registered encoder; None chooses by the shape.
        encoder_hidden_size_list: Widths of the encoder; None takes the encoder's default.
        dueling: Use a dueling head.
        head_hidden_size: Width of the head's hidden layers; the encoder's output size if None.
        head_layer_num: Hidden layers of the head; None means 1 with ``dueling``, else 0.
        activation: relu, tanh, elu, gelu or silu.
        layer_norm: Whether to normalise each hidden layer, those of the encoder too, before its activation.
        encoder_kwargs: Further arguments of the encoder by name, see ``create_encoder``.

    Raises:
        ValueError: If a size is out of its range, or ``head_hidden_size`` is given to a head without hidden layers.

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
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        features = self.encoder.output_size
        width, layers = head_size(features, head_hidden_size, head_layer_num, dueling)
        head_class, options = DuelingHead if dueling else DiscreteHead, (width, layers, activation, layer_norm)
        if isinstance(action_shape, int):
            self.head: nn.Module = head_class(features, action_shape, *options)
        else:
            self.head = MultiHead([head_class(features, size, *options) for size in action_shape])

    def forward(self, obs: Any) -> dict[str, Tensor | list[Tensor]]:
        """Return ``{"logit": values}``: shape (B, A), or a list of them for a multi-discrete action."""
        return {"logit": self.head(self.encoder(obs))}
