"""The network of policy gradients without a critic.

Shapes: B batch, A actions of a discrete action or dimensions of a continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from lightning_ding.model.actor import (
    FIXED_SIGMA,
    ActionShape,
    ActionSpace,
    SigmaType,
    create_actor,
    init_orthogonally,
)
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("pg")
class PG(nn.Module):
    """Encoder and actor: a distribution over actions.

    Args:
        obs_shape: A size, a shape, or a dict of them; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions, or a number for each dimension of a multi-discrete action; the dimensions of a
            continuous one; ``action_type_shape`` and ``action_args_shape`` of a hybrid one.
        action_space: Kind of action.
        encoder: A registered encoder; None chooses by the shape.
        encoder_hidden_size_list: Widths of the encoder; None takes the encoder's default.
        actor_head_hidden_size: Width of the head's hidden layers; the encoder's output size if None.
        actor_head_layer_num: Hidden layers of the head, >= 0.
        activation: relu, tanh, elu, gelu or silu.
        sigma_type: Standard deviation of continuous actions: ``"independent"`` is a parameter for each dimension,
            e^-0.5 at the start; ``"conditioned"`` a linear layer, its log kept in [-20, 2]; ``"fixed"`` a constant.
        fixed_sigma_value: The constant, > 0.
        bound_type: ``"tanh"`` keeps the mean of continuous actions in (-1, 1); None leaves it free.
        layer_norm: Whether to normalise each hidden layer, those of the encoder too, before its activation.
        encoder_kwargs: Further arguments of the encoder by name, see ``create_encoder``.

    Raises:
        ValueError: If a value is out of its range, does not fit the kind of action, or would have no effect.

    Example:
        >>> import torch
        >>> PG(obs_shape=4, action_shape=2)(torch.zeros(3, 4))["logit"].shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: ActionShape,
        action_space: ActionSpace = "discrete",
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        actor_head_hidden_size: int | None = None,
        actor_head_layer_num: int = 0,
        activation: str = "relu",
        sigma_type: SigmaType = "independent",
        fixed_sigma_value: float = FIXED_SIGMA,
        bound_type: Literal["tanh"] | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        self.actor = create_actor(
            self.encoder.output_size,
            action_shape,
            action_space,
            actor_head_hidden_size,
            actor_head_layer_num,
            activation,
            sigma_type,
            fixed_sigma_value,
            bound_type,
            layer_norm,
        )

    def forward(self, obs: Any) -> dict[str, Any]:
        """Return ``logit``, what ``rl.distribution_of`` takes; see ``VAC.compute_actor``."""
        return {"logit": self.actor(self.encoder(obs))}

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01) -> None:
        """Start as ``VAC.init_orthogonally`` does.

        Args:
            hidden: Gain of all layers but the last ones.
            actor: Gain of the last layer of the actor.
        """
        init_orthogonally(self, {self.actor: actor}, hidden)
