"""The network of REINFORCE, an actor without a critic.

Shapes: B batch, A number of actions, or dimensions of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from lightning_ding.model.actor import FIXED_SIGMA, ActionShape, ActionSpace, SigmaType, create_actor, init_orthogonally
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.registry import MODEL_REGISTRY


@MODEL_REGISTRY.register("pg")
class PG(nn.Module):
    """Encoder and actor that compute a distribution over actions.

    The arguments and errors are those of :class:`VAC` for the actor; ``actor_hidden_size_list`` is given alone.

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
        actor_head_layer_num: int | None = None,
        activation: str = "relu",
        sigma_type: SigmaType = "independent",
        fixed_sigma_value: float = FIXED_SIGMA,
        bound_type: Literal["tanh"] | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        actor_hidden_size_list: Sequence[int] | None = None,
        log_std_init: float | None = None,
    ) -> None:
        super().__init__()
        has_list = actor_hidden_size_list is not None
        options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs, has_list)
        self.encoder = encoder_for(obs_shape, *options)
        head = (actor_head_hidden_size, actor_head_layer_num, activation)
        gaussian = (sigma_type, fixed_sigma_value, bound_type)
        added = (layer_norm, actor_hidden_size_list, log_std_init)
        self.actor = create_actor(self.encoder.output_size, action_shape, action_space, *head, *gaussian, *added)

    def forward(self, obs: Any) -> dict[str, Any]:
        """Return ``logit``, the argument of ``rl.distribution_of``; see ``VAC.compute_actor``."""
        return {"logit": self.actor(self.encoder(obs))}

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01) -> None:
        """Initialise the weights as ``VAC.init_orthogonally`` does.

        Args:
            hidden: Gain of all layers but the output layer.
            actor: Gain of the actor's output layer.
        """
        init_orthogonally(self, {self.actor: actor}, hidden)
