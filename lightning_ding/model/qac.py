"""An actor and critics that value its continuous actions.

Shapes: B batch, A dimensions of a continuous action, K choices of a hybrid one, E critics, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import MLP, ObsShape, encoder_for, is_image
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.features import Described, create_features, is_described
from lightning_ding.model.head import full_precision
from lightning_ding.registry import MODEL_REGISTRY

LOG_SIGMA_RANGE = (-20.0, 2.0)  # Haarnoja et al. 2018, their code


class FlatVector(nn.Module):
    """No encoder: a vector observation is its own features.

    Args:
        obs_shape: Size, or shape to flatten.
    """

    def __init__(self, obs_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.output_size = obs_shape if isinstance(obs_shape, int) else math.prod(obs_shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Return observations, shape (B, *obs_shape), as features, shape (B, F)."""
        if obs.ndim != 2:
            obs = obs.flatten(1) if obs.ndim > 2 else obs.unsqueeze(1)
        return obs if obs.is_floating_point() else obs.float()


class Actor(nn.Module):
    """Encoder and layers of the actor.

    Args:
        encoder: With ``output_size``; None when the features are given.
        sizes: Widths of the layers, features first.
        activation: After every layer but the last.
        layer_norm: Whether to normalise each layer but the last before its activation.
    """

    def __init__(
        self, encoder: nn.Module | None, sizes: Sequence[int], activation: str, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = MLP(sizes, activation, activate_last=False, layer_norm=layer_norm)


class Critic(nn.Module):
    """Encoder and layers of the critics, which share the encoder.

    Args:
        encoder: With ``output_size``.
        ensemble_size: E.
        sizes: Widths of the layers, features and action first.
        activation: After every layer but the last.
        layer_norm: Whether to normalise each layer but the last before its activation.
    """

    def __init__(
        self,
        encoder: nn.Module,
        ensemble_size: int,
        sizes: Sequence[int],
        activation: str,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = EnsembleMLP(ensemble_size, sizes, activation, layer_norm)


@MODEL_REGISTRY.register("continuous_qac")
class ContinuousQAC(nn.Module):
    """An actor and one or two critics, in normalised actions; ``actor`` and ``critic`` share no parameters.

    Args:
        obs_shape: A size, a shape, or a dict of them; an entry ``action_mask``, of a hybrid action, is not encoded.
        action_shape: A; hybrid: ``{"action_type_shape": K, "action_args_shape": A}``.
        action_space: ``regression`` for an action, ``reparameterization`` for a distribution, ``hybrid`` for a choice
            with arguments.
        twin_critic: Two critics instead of one.
        actor_head_hidden_size: Width of the actor's hidden layers.
        actor_head_layer_num: Hidden layers of the actor, >= 0.
        critic_head_hidden_size: Width of the critics' hidden layers.
        critic_head_layer_num: Hidden layers of the critics, >= 0.
        encoder: A registered encoder; None chooses by the shape, none for vectors.
        encoder_hidden_size_list: Widths of the encoders; None takes the encoder's default, none for vectors.
        share_encoder: The actor sees the critics' features; only the critics' loss trains the encoder (Yarats et al.
            2021, https://arxiv.org/abs/1910.01741).
        activation: relu, tanh, elu, gelu or silu.
        last_layer_init: The last layers start uniform in [-x, x] (Lillicrap et al. 2016, section 7); None starts them
            as all others.
        layer_norm: Whether to normalise each hidden layer, those of the encoders too, before its activation.
        encoder_kwargs: Further arguments of the encoders by name, see ``create_encoder``; vectors get an encoder then.

    Raises:
        ValueError: If a size is out of its range, there is no encoder to share or no layer to normalise, or there is a
            mask but no choice.

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
        actor_head_layer_num: int = 2,
        critic_head_hidden_size: int = 256,
        critic_head_layer_num: int = 2,
        encoder_hidden_size_list: Sequence[int] | None = None,
        share_encoder: bool = False,
        activation: str = "relu",
        last_layer_init: float | None = None,
        encoder: str | None = None,
        layer_norm: bool = False,
        encoder_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        sizes = {"actor_head": actor_head_layer_num, "critic_head": critic_head_layer_num}
        for name, layers in sizes.items():
            require(layers >= 0, f"{name}_layer_num", ">= 0", layers)
        is_masked = isinstance(obs_shape, Mapping) and "action_mask" in obs_shape
        fits = action_space == "hybrid" or not is_masked
        require(fits, "obs_shape", "without action_mask for actions without a choice", obs_shape)
        self.action_space = action_space
        self.choices = 0
        if action_space == "hybrid":
            shapes = cast("Mapping[str, int]", action_shape)
            self.choices, action_shape = shapes["action_type_shape"], shapes["action_args_shape"]
        self.action_size = cast(int, action_shape)

        def make() -> Any:
            options = (encoder, encoder_hidden_size_list, activation, layer_norm, encoder_kwargs)
            return make_encoder(obs_shape, *options)

        outputs = self.choices + self.action_size * (2 if action_space == "reparameterization" else 1)
        critic_encoder = make()
        features = critic_encoder.output_size
        has_encoder = any(True for _ in critic_encoder.parameters())
        require(has_encoder or not share_encoder, "share_encoder", "False without an encoder", share_encoder)
        is_used = has_encoder or any(sizes.values()) or not layer_norm
        require(is_used, "layer_norm", "False without hidden layers", layer_norm)
        actor_sizes = [features, *[actor_head_hidden_size] * actor_head_layer_num, outputs]
        critic_input = features + self.choices + self.action_size
        critic_sizes = [critic_input, *[critic_head_hidden_size] * critic_head_layer_num, 1]
        self.actor = Actor(None if share_encoder else make(), actor_sizes, activation, layer_norm)
        self.critic = Critic(critic_encoder, 1 + twin_critic, critic_sizes, activation, layer_norm)
        if last_layer_init is not None:
            last = self.actor.head.layers[-1]
            for parameter in (*last.parameters(), self.critic.head.weights[-1], self.critic.head.biases[-1]):
                nn.init.uniform_(parameter, -last_layer_init, last_layer_init)

    def compute_actor(self, obs: Any) -> dict[str, Tensor]:
        """Return what the actor says of B observations, in normalised units.

        Returns:
            ``action`` (B, A) in [-1, 1]; ``mu`` and ``log_sigma`` (B, A) of the action before squashing with
            ``reparameterization``; ``logit`` (B, K) and ``action_args`` (B, A) in [-1, 1] with ``hybrid``.
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
            action: Normalised actions, shape (B, A); hybrid: ``action_type`` (B,), or its weights (B, K), and
                ``action_args`` (B, A).
            members: How many critics to ask, the first ones; None means all.
        """
        parts = [self.critic.encoder(obs)]
        if isinstance(action, Mapping):
            choice = action["action_type"]
            parts.append(choice if choice.ndim == 2 else F.one_hot(choice.long(), self.choices).to(parts[0].dtype))
            action = action["action_args"]
        return {"q_value": self.critic.head(torch.cat([*parts, action], dim=1), members).squeeze(2)}


def make_encoder(
    obs_shape: ObsShape,
    encoder: str | None,
    hidden_size_list: Sequence[int] | None,
    activation: str,
    layer_norm: bool = False,
    encoder_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the encoder of an actor or of critics; a vector has none unless something is said of it."""
    options = (encoder, hidden_size_list, activation, layer_norm, encoder_kwargs)
    if is_described(obs_shape):
        features = create_features(cast("Mapping[str, Any]", obs_shape))
        return Described(features, make_encoder(features.output_shape, *options))
    is_vector = not isinstance(obs_shape, Mapping) and not is_image(obs_shape)
    if is_vector and encoder is None and hidden_size_list is None and not encoder_kwargs:
        return FlatVector(cast("int | Sequence[int]", obs_shape))
    return encoder_for(obs_shape, *options)
