"""The network of actor-critic methods: PPO and A2C.

Shapes: B batch, A number of actions, or dimensions of a continuous action, K choices of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from torch import nn

from lightning_ding.config import require
from lightning_ding.model.actor import (
    FIXED_SIGMA,
    SDE,
    ActionShape,
    ActionSpace,
    SigmaType,
    create_actor,
    init_orthogonally,
)
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import DiscreteHead, check_widths, hidden_layers
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
        actor_hidden_size_list: Width of each layer of the actor's head, in place of ``actor_head_hidden_size`` and
            ``actor_head_layer_num``; needs ``critic_hidden_size_list``. With both, a vector has no encoder layers
            unless an argument of the encoder is given.
        critic_hidden_size_list: Width of each layer of the critic's head, likewise.
        log_std_init: Logarithm of the initial standard deviation, see ``GaussianHead``.
        use_sde: Make the standard deviation that of state-dependent noise, see ``StateDependentSigma``, which also
            describes ``full_std`` and ``use_expln``.

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
        actor_hidden_size_list: Sequence[int] | None = None,
        critic_hidden_size_list: Sequence[int] | None = None,
        log_std_init: float | None = None,
        use_sde: bool = False,
        full_std: bool = True,
        use_expln: bool = False,
    ) -> None:
        super().__init__()
        has_lists = both_lists(actor_hidden_size_list, critic_hidden_size_list)
        options = (obs_shape, encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs, has_lists)
        self.encoder = encoder_for(*options)
        self.critic_encoder = None if share_encoder else encoder_for(*options)
        features = self.encoder.output_size
        head = (actor_head_hidden_size, actor_head_layer_num, activation)
        gaussian = (sigma_type, fixed_sigma_value, bound_type)
        sde = SDE.of(use_sde, full_std, use_expln)
        added: dict[str, Any] = {"hidden_size_list": actor_hidden_size_list, "log_std_init": log_std_init, "sde": sde}
        self.actor = create_actor(features, action_shape, action_space, *head, *gaussian, layer_norm, **added)
        sizes = (critic_head_hidden_size, critic_head_layer_num, critic_hidden_size_list)
        self.critic = critic_head(features, *sizes, activation, layer_norm)

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


def both_lists(actor: Sequence[int] | None, critic: Sequence[int] | None) -> bool:
    """Return whether the widths of the layers of actor and critic are given as lists.

    Raises:
        ValueError: If only one of them is: the other head would be a linear function of the observation.
    """
    for name, other, given, of_other in (
        ("actor_hidden_size_list", "critic_hidden_size_list", actor, critic),
        ("critic_hidden_size_list", "actor_hidden_size_list", critic, actor),
    ):
        require(given is not None or of_other is None, name, f"set with {other}, and None without it", given)
    return actor is not None


def critic_head(
    input_size: int,
    hidden_size: int | None,
    layer_num: int | None,
    hidden_size_list: Sequence[int] | None,
    activation: str,
    layer_norm: bool,
) -> DiscreteHead:
    """Return the head that maps features to a value; the arguments are those of :class:`VAC` for the critic's head.

    Raises:
        ValueError: If a size is out of its range, or the layers are described twice.
    """
    width, layers = hidden_layers("critic_head", input_size, hidden_size, layer_num)
    others = {"critic_head_hidden_size": hidden_size, "critic_head_layer_num": layer_num}
    check_widths("critic_hidden_size_list", hidden_size_list, **others)
    return DiscreteHead(input_size, 1, width, layers, activation, layer_norm, hidden_size_list)
