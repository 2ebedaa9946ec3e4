"""The network of DDPG, TD3 and SAC: an actor for continuous actions, and critics.

Shapes: B batch, A dimensions of a continuous action, K choices of a hybrid action, E critics, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.actor import LOG_SIGMA_RANGE
from lightning_ding.model.encoder import MLP, ObsShape, activation_function, encoder_for
from lightning_ding.model.heads import full_precision
from lightning_ding.registry import MODEL_REGISTRY


class EncoderAndHead(nn.Module):
    """The actor, or the critics, which share an encoder.

    Args:
        encoder: Encoder with an attribute ``output_size``; None if the actor uses the critics' features.
        head: Layers that take the features.
    """

    def __init__(self, encoder: Any, head: Any) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head


@MODEL_REGISTRY.register("continuous_qac")
class ContinuousQAC(nn.Module):
    """An actor and one or two critics of normalised actions; ``actor`` and ``critic`` share no parameters.

    Args:
        obs_shape: Size, shape or dict of these of an observation; an entry ``action_mask``, the mask of a hybrid
            action's choices, is not encoded.
        action_shape: Number of dimensions A; hybrid: ``{"action_type_shape": K, "action_args_shape": A}``.
        action_space: Output of the actor: ``regression`` for an action, ``reparameterization`` for a distribution,
            ``hybrid`` for a choice with arguments.
        twin_critic: Use two critics instead of one.
        actor_head_hidden_size: Width of the actor's hidden layers.
        actor_head_layer_num: Number of hidden layers of the actor after the first one, >= 0.
        critic_head_hidden_size: Width of the critics' hidden layers.
        critic_head_layer_num: Number of hidden layers of the critics after the first one, >= 0.
        encoder: Name of a registered encoder; None chooses one by the shape, and no encoder for vectors.
        encoder_hidden_size_list: Widths of the encoders' layers; None for the encoder's default.
        share_encoder: Use the critics' features as the actor's input; only the critics' loss trains the encoder (Yarats
            et al. 2021, https://arxiv.org/abs/1910.01741).
        activation: Activation of all hidden layers: relu, tanh, elu, gelu or silu.
        last_layer_init: Bound x of the uniform initial weights in [-x, x] of the output layers (Lillicrap et al. 2016,
            section 7); None initialises them like all other layers.
        layer_norm: Apply layer normalisation before the activation of each hidden layer, also in the encoders.
        encoder_kwargs: Further keyword arguments of the encoders, see ``create_encoder``. If it is not empty, vectors
            get an encoder too.
        with_value: Add a network of the values of observations, with the sizes of the critics and its own encoder.

    Raises:
        ValueError: If a size is out of its range, there is no encoder to share, or the observation has a mask and the
            action no choice.

    Example:
        >>> model = ContinuousQAC(obs_shape=3, action_shape=1)
        >>> action = model.compute_actor(torch.zeros(5, 3))["action"]
        >>> model.compute_critic(torch.zeros(5, 3), action)["q_value"].shape
        torch.Size([1, 5])
    """

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int | Mapping[str, int],
        action_space: Literal["regression", "reparameterization", "hybrid"] = "regression",
        twin_critic: bool = False,
        actor_head_hidden_size: int = 256,
        actor_head_layer_num: int = 1,
        critic_head_hidden_size: int = 256,
        critic_head_layer_num: int = 1,
        encoder_hidden_size_list: Sequence[int] | None = None,
        share_encoder: bool = False,
        activation: str = "relu",
        last_layer_init: float | None = None,
        encoder: str | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
        with_value: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"actor_head": actor_head_layer_num, "critic_head": critic_head_layer_num}
        for name, layers in sizes.items():
            require(layers >= 0, f"{name}_layer_num", ">= 0", layers)
        is_masked = action_space != "hybrid" and isinstance(obs_shape, Mapping) and "action_mask" in obs_shape
        require(not is_masked, "obs_shape", "without action_mask for actions without a choice", obs_shape)
        self.action_space = action_space
        self.choices = 0
        if action_space == "hybrid":
            shapes = cast("Mapping[str, int]", action_shape)
            self.choices, action_shape = shapes["action_type_shape"], shapes["action_args_shape"]
        self.action_size = cast(int, action_shape)

        def make() -> Any:
            options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
            return encoder_for(obs_shape, *options, keeps_vectors=True)

        outputs = self.choices + self.action_size * (2 if action_space == "reparameterization" else 1)
        critic_encoder = make()
        features = critic_encoder.output_size
        has_encoder = any(True for _ in critic_encoder.parameters())
        require(has_encoder or not share_encoder, "share_encoder", "False without an encoder", share_encoder)
        actor_sizes = [features, *[actor_head_hidden_size] * (1 + actor_head_layer_num), outputs]
        critic_input = features + self.choices + self.action_size
        critic_sizes = [critic_input, *[critic_head_hidden_size] * (1 + critic_head_layer_num), 1]
        actor_encoder = None if share_encoder else make()
        actor_head = MLP(actor_sizes, activation, activate_last=False, layer_norm=layer_norm)
        self.actor = EncoderAndHead(actor_encoder, actor_head)
        self.critic = EncoderAndHead(critic_encoder, EnsembleMLP(1 + twin_critic, critic_sizes, activation, layer_norm))
        if last_layer_init is not None:
            self._init_last_layers(last_layer_init)
        if with_value:
            value_sizes = [features, *critic_sizes[1:]]
            value_head = MLP(value_sizes, activation, activate_last=False, layer_norm=layer_norm)
            self.value = EncoderAndHead(make(), value_head)

    def _init_last_layers(self, bound: float) -> None:
        last = self.actor.head.layers[-1]
        for parameter in (*last.parameters(), self.critic.head.weights[-1], self.critic.head.biases[-1]):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Any, mode: Literal["compute_actor", "compute_critic"]) -> dict[str, Any]:
        """Return the output of the actor or of the critics in DI-engine's form, for policies that are written in it.

        Args:
            inputs: For ``compute_actor`` B observations; for ``compute_critic`` a mapping with ``obs`` and ``action``,
                normalised, shape (B, A) or, of one dimension, (B,). For a hybrid action, ``action`` has
                ``action_args``, and the mapping also ``logit``, shape (B, K).
            mode: The part of the network.

        Returns:
            ``compute_actor``: ``action`` (B, A); with ``reparameterization``, ``logit``, a list of the mean and the
            standard deviation (B, A) before squashing; with ``hybrid``, ``logit`` (B, K) and ``action_args`` (B, A).
            ``compute_critic``: ``q_value`` (B,), or a list of two of them.

        Raises:
            ValueError: If there is no such mode.
        """
        require(mode in ("compute_actor", "compute_critic"), "mode", "'compute_actor' or 'compute_critic'", mode)
        if mode == "compute_actor":
            output = self.compute_actor(inputs)
            is_gaussian = self.action_space == "reparameterization"
            return {"logit": [output["mu"], output["log_sigma"].exp()]} if is_gaussian else output
        action = inputs["action"]
        if self.choices:
            action = {"action_type": inputs["logit"].softmax(dim=-1), "action_args": action["action_args"]}
        parts = action if isinstance(action, Mapping) else {"action_args": action}
        columns = {name: part.unsqueeze(1) if part.ndim == 1 else part for name, part in parts.items()}
        q_value = self.compute_critic(inputs["obs"], columns if self.choices else columns["action_args"])["q_value"]
        return {"q_value": list(q_value) if len(q_value) > 1 else q_value[0]}

    def compute_actor(self, obs: Any) -> dict[str, Tensor]:
        """Return the actor's output for B observations, in normalised units.

        Returns:
            With ``regression``, ``action`` (B, A) in [-1, 1]; with ``reparameterization``, ``mu`` and ``log_sigma`` (B,
            A) of the action before squashing; with ``hybrid``, ``logit`` (B, K) and ``action_args`` (B, A) in [-1, 1].
        """
        encoder = self.actor.encoder
        features = self.critic.encoder(obs).detach() if encoder is None else encoder(obs)
        output = full_precision(self.actor.head(features))
        if self.action_space == "regression":
            return {"action": output.tanh()}
        if self.action_space == "hybrid":
            logit, action_args = output.split([self.choices, self.action_size], dim=1)
            return {"logit": logit, "action_args": action_args.tanh()}
        mu, log_sigma = output.chunk(2, dim=1)
        return {"mu": mu, "log_sigma": log_sigma.clamp(*LOG_SIGMA_RANGE)}

    def compute_critic(self, obs: Any, action: Tensor | Mapping[str, Tensor], members: int | None = None) -> Any:
        """Return ``{"q_value": values}``, shape (E, B).

        Args:
            obs: B observations.
            action: Normalised actions, shape (B, A); hybrid: ``action_type`` (B,), or weights of the choices (B, K),
                and ``action_args`` (B, A).
            members: Number of critics to evaluate, counted from the first; None means all.
        """
        parts = [self.critic.encoder(obs)]
        if isinstance(action, Mapping):
            choice = action["action_type"]
            parts.append(choice if choice.ndim == 2 else F.one_hot(choice.long(), self.choices).to(parts[0].dtype))
            action = action["action_args"]
        return {"q_value": self.critic.head(torch.cat([*parts, action], dim=1), members).squeeze(2)}

    def compute_value(self, obs: Any) -> Tensor:
        """Return the values of B observations, shape (B,); needs ``with_value``."""
        return full_precision(self.value.head(self.value.encoder(obs))).squeeze(1)


class EnsembleMLP(nn.Module):
    """E networks of linear layers, evaluated together with one batched matrix product for each layer.

    Each member is initialised like ``nn.Linear`` layers. The output is 32-bit also under mixed precision.

    Args:
        ensemble_size: Number of networks E, >= 1.
        sizes: Widths of the input and of each layer.
        activation: Activation of all layers but the last: relu, tanh, elu, gelu or silu.
        layer_norm: Apply layer normalisation before each activation.

    Example:
        >>> EnsembleMLP(2, [3, 8, 1])(torch.zeros(5, 3)).shape
        torch.Size([2, 5, 1])
    """

    def __init__(
        self, ensemble_size: int, sizes: Sequence[int], activation: str = "relu", layer_norm: bool = False
    ) -> None:
        super().__init__()
        require(ensemble_size >= 1, "ensemble_size", ">= 1", ensemble_size)
        self.activate = activation_function(activation)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()  # (E, in, out) and (E, 1, out)
        for layer_in, layer_out in pairwise(sizes):
            layers = [nn.Linear(layer_in, layer_out) for _ in range(ensemble_size)]
            self.weights.append(nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers])))
            self.biases.append(nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers])))
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()  # layer normalisation, shape (E, 1, out)
        for size in sizes[1:-1] if layer_norm else ():
            self.scales.append(nn.Parameter(torch.ones(ensemble_size, 1, size)))
            self.shifts.append(nn.Parameter(torch.zeros(ensemble_size, 1, size)))

    def forward(self, x: Tensor, members: int | None = None) -> Tensor:
        """Return the output of each member, shape (E, B, sizes[-1]), for ``x``, shape (B, sizes[0]).

        Args:
            x: Input of all members.
            members: Number of members to evaluate, counted from the first; None means all.
        """
        weights, biases = list(self.weights), list(self.biases)
        if members is not None:
            weights, biases = [weight[:members] for weight in weights], [bias[:members] for bias in biases]
        x = x.expand(len(weights[0]), *x.shape)
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if number < len(weights) - 1:
                x = self.activate(x if len(self.scales) == 0 else self._normalised(x, number))
        return full_precision(x)

    def _normalised(self, x: Tensor, number: int) -> Tensor:
        """Return the output of hidden layer ``number``, shape (E, B, out), after layer normalisation."""
        scale, shift = self.scales[number][: len(x)], self.shifts[number][: len(x)]
        return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:]), scale)
