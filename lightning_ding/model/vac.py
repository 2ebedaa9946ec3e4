"""The network of actor-critic methods: PPO and A2C.

Shapes: B batch, A number of actions, or dimensions of a continuous action, K choices of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from torch import nn

from lightning_ding.config import require
from lightning_ding.model.actor import FIXED_SIGMA, ActionShape, ActionSpace, SigmaType, create_actor, init_orthogonally
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, hidden_layers
from lightning_ding.registry import MODEL_REGISTRY

MODES = ("compute_actor", "compute_critic", "compute_actor_critic")


@MODEL_REGISTRY.register("vac")
class VAC(nn.Module):
    """Actor and critic that compute a distribution over actions and the value of an observation.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask`` is not encoded.
        action_shape: Number of actions; for a multi-discrete action the number of each dimension, for a continuous
            action the number of dimensions, for a hybrid action ``action_type_shape`` and ``action_args_shape``.
        action_space: Kind of action space.
        share_encoder: Use one encoder for actor and critic.
        encoder: Name of a registered encoder; None chooses one by the shape.
        encoder_hidden_size_list: Widths of the encoder's layers; None for the encoder's default.
        actor_head_hidden_size: Width of the actor head's hidden layers; None for the encoder's output size.
        actor_head_layer_num: Number of hidden layers of the actor's head, >= 0; None means 1 if
            ``actor_head_hidden_size`` is given, otherwise 0.
        critic_head_hidden_size: Width of the critic head's hidden layers; None for the encoder's output size.
        critic_head_layer_num: Number of hidden layers of the critic's head, >= 0; None means 1 if
            ``critic_head_hidden_size`` is given, otherwise 0.
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        sigma_type: Source of the standard deviation of continuous actions, see ``GaussianHead``.
        fixed_sigma_value: Standard deviation with ``sigma_type="fixed"``, > 0.
        bound_type: Bound of the mean of continuous actions, see ``GaussianHead``.
        layer_norm: Apply layer normalisation before the activation of each hidden layer, also in the encoder.
        encoder_kwargs: Further keyword arguments of the encoder, see ``create_encoder``.

    Raises:
        ValueError: If a value is out of its range, does not fit the action space, or would have no effect.

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
        actor_head_layer_num: int | None = None,
        critic_head_hidden_size: int | None = None,
        critic_head_layer_num: int | None = None,
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
        head = (actor_head_hidden_size, actor_head_layer_num, activation)
        gaussian = (sigma_type, fixed_sigma_value, bound_type)
        self.actor = create_actor(features, action_shape, action_space, *head, *gaussian, layer_norm)
        width, layers = hidden_layers("critic_head", features, critic_head_hidden_size, critic_head_layer_num)
        self.critic = DiscreteHead(features, 1, width, layers, activation, layer_norm)

    def forward(self, obs: Any, mode: str = "compute_actor_critic") -> dict[str, Any]:
        """Call the method named ``mode`` and return its output.

        Raises:
            ValueError: If ``mode`` is not one of ``MODES``.
        """
        require(mode in MODES, "mode", f"one of {MODES}", mode)
        if mode == "compute_actor":
            return self.compute_actor(obs)
        return self.compute_critic(obs) if mode == "compute_critic" else self.compute_actor_critic(obs)

    def compute_actor(self, obs: Any) -> dict[str, Any]:
        """Return ``logit``, the argument of ``rl.distribution_of``.

        It is a tensor (B, A); for a multi-discrete action a list of tensors; for a continuous action ``mu`` and
        ``sigma`` (B, A); for a hybrid action ``action_type`` (B, K) and ``action_args`` with ``mu`` and ``sigma``.
        """
        return {"logit": self.actor(self.encoder(obs))}

    def compute_critic(self, obs: Any) -> dict[str, Any]:
        """Return ``value``, shape (B,)."""
        encoder = self.encoder if self.critic_encoder is None else self.critic_encoder
        return {"value": self.critic(encoder(obs)).squeeze(1)}

    def compute_actor_critic(self, obs: Any) -> dict[str, Any]:
        """Return ``logit`` and ``value``; a shared encoder is evaluated once."""
        if self.critic_encoder is not None:
            return self.compute_actor(obs) | self.compute_critic(obs)
        features = self.encoder(obs)
        return {"logit": self.actor(features), "value": self.critic(features).squeeze(1)}

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that determine actions, a shared encoder's among them."""
        return [*self.encoder.parameters(), *self.actor.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the other parameters: those that only determine values."""
        encoder = [] if self.critic_encoder is None else list(self.critic_encoder.parameters())
        return [*encoder, *self.critic.parameters()]

    @property
    def critic_output(self) -> nn.Linear:
        """The layer whose output is the value."""
        return cast(nn.Linear, self.critic.layers[-1])

    def init_orthogonally(self, hidden: float = math.sqrt(2), actor: float = 0.01, critic: float = 1.0) -> None:
        """Initialise with orthogonal weights, zero biases and a nearly uniform actor.

        Andrychowicz et al. 2021, section 3.2, https://arxiv.org/abs/2006.05990. The standard deviation of continuous
        actions keeps its initial value.

        Args:
            hidden: Gain of all layers but the output layers, also of the encoder.
            actor: Gain of the actor's output layer.
            critic: Gain of the critic's output layer.
        """
        init_orthogonally(self, {self.actor: actor, self.critic: critic}, hidden)
