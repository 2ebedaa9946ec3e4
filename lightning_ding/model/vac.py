"""The network of actor-critic methods: PPO and A2C.

Shapes: B batch, A actions of a discrete action or dimensions of a continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from lightning_ding.config import require
from lightning_ding.model.actor import (
    FIXED_SIGMA,
    ActionShape,
    ActionSpace,
    SigmaType,
    create_actor,
    head_width,
    init_orthogonally,
)
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.head import DiscreteHead
from lightning_ding.registry import MODEL_REGISTRY

MODES = ("compute_actor", "compute_critic", "compute_actor_critic")


@MODEL_REGISTRY.register("vac")
class VAC(nn.Module):
    """Value actor-critic: a distribution over actions and the value of an observation.

    Args:
        obs_shape: A size, a shape, or a dict of them; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions, or a number for each dimension of a multi-discrete action; the dimensions of a
            continuous one; ``action_type_shape`` and ``action_args_shape`` of a hybrid one.
        action_space: Kind of action.
        share_encoder: Let actor and critic have one encoder.
        encoder: A registered encoder; None chooses by the shape.
        encoder_hidden_size_list: Widths of the encoder; None takes the encoder's default.
        actor_head_hidden_size: Width of the actor head's hidden layers; the encoder's output size if None.
        actor_head_layer_num: Hidden layers of the actor's head, >= 0.
        critic_head_hidden_size: Width of the critic head's hidden layers; the encoder's output size if None.
        critic_head_layer_num: Hidden layers of the critic's head, >= 0.
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
        >>> output = VAC(obs_shape=4, action_shape=2)(torch.zeros(3, 4))
        >>> output["logit"].shape, output["value"].shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: ActionShape,
        action_space: ActionSpace = "discrete",
        share_encoder: bool = True,
        encoder: str | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        actor_head_hidden_size: int | None = None,
        actor_head_layer_num: int = 0,
        critic_head_hidden_size: int | None = None,
        critic_head_layer_num: int = 0,
        activation: str = "relu",
        sigma_type: SigmaType = "independent",
        fixed_sigma_value: float = FIXED_SIGMA,
        bound_type: Literal["tanh"] | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        options = (obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
        self.encoder = encoder_for(*options)
        self.critic_encoder = None if share_encoder else encoder_for(*options)
        features = self.encoder.output_size
        self.actor = create_actor(
            features,
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
        width = head_width("critic_head", features, critic_head_hidden_size, critic_head_layer_num)
        self.critic = DiscreteHead(features, 1, width, critic_head_layer_num, activation, layer_norm)

    def forward(self, obs: Any, mode: str = "compute_actor_critic") -> dict[str, Any]:
        """Return what the method named ``mode`` does.

        Raises:
            ValueError: If there is none of that name.
        """
        require(mode in MODES, "mode", f"one of {MODES}", mode)
        output: dict[str, Any] = getattr(self, mode)(obs)
        return output

    def compute_actor(self, obs: Any) -> dict[str, Any]:
        """Return ``logit``, what ``rl.distribution_of`` takes.

        It is a tensor (B, A); for a multi-discrete action a list of them; for a continuous one ``mu`` and ``sigma``
        (B, A); for a hybrid one ``action_type`` (B, K) and ``action_args`` with ``mu`` and ``sigma``.
        """
        return {"logit": self.actor(self.encoder(obs))}

    def compute_critic(self, obs: Any) -> dict[str, Any]:
        """Return ``value``, shape (B,)."""
        encoder = self.encoder if self.critic_encoder is None else self.critic_encoder
        return {"value": self.critic(encoder(obs)).squeeze(1)}

    def compute_actor_critic(self, obs: Any) -> dict[str, Any]:
        """Return ``logit`` and ``value``; a shared encoder runs once."""
        if self.critic_encoder is not None:
            return self.compute_actor(obs) | self.compute_critic(obs)
        features = self.encoder(obs)
        return {"logit": self.actor(features), "value": self.critic(features).squeeze(1)}

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Start from orthogonal weights, biases of 0 and an actor that prefers no action (Andrychowicz et al. 2021).

        Section 3.2 of https://arxiv.org/abs/2006.05990. The standard deviation of continuous actions starts as it is.

        Args:
            hidden: Gain of all layers but the last ones, and of the encoder.
            actor: Gain of the last layer of the actor.
            critic: Gain of the last layer of the critic.
        """
        init_orthogonally(self, {self.actor: actor, self.critic: critic}, hidden)
