"""The network of BCQ: critics, a generative model of the data's actions, and an actor that shifts its actions.

Shapes: B batch, N candidates, A dimensions of an action, L dimensions of a latent variable, E critics, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.encoder import ObsShape, encoder_for
from lightning_ding.model.heads import check_widths, full_precision
from lightning_ding.model.mlp import MLP
from lightning_ding.model.qac import ContinuousQAC
from lightning_ding.registry import MODEL_REGISTRY

LATENT_BOUND = 0.5
LOG_SIGMA_RANGE = (-4.0, 15.0)


class ActionVAE(nn.Module):
    """A variational auto-encoder of actions, conditioned on observations (Fujimoto et al. 2019, section 5).

    Args:
        encoder: Encoder of observations with an attribute ``output_size``.
        action_size: Number of dimensions A.
        latent_size: Number of dimensions L.
        hidden: Widths of the hidden layers of the encoder of actions and of the decoder.
        activation: Activation of the hidden layers.
        layer_norm: Apply layer normalisation before each activation.
    """

    def __init__(
        self, encoder: Any, action_size: int, latent_size: int, hidden: Sequence[int], activation: str, layer_norm: bool
    ) -> None:
        super().__init__()
        self.encoder, features = encoder, encoder.output_size
        options: dict[str, Any] = {"activation": activation, "activate_last": False, "layer_norm": layer_norm}
        self.encode = MLP([features + action_size, *hidden, 2 * latent_size], **options)
        self.decode = MLP([features + latent_size, *hidden, action_size], **options)


@MODEL_REGISTRY.register("bcq")
class BCQ(ContinuousQAC):
    """Critics, a variational auto-encoder ``vae`` of actions, and an actor that shifts actions by at most ``phi``.

    The arguments that are not listed are those of :class:`ContinuousQAC`, for actions without a choice.

    Args:
        phi: Largest change of an action by the actor, in normalised units, >= 0.
        latent_size: Number of dimensions L of the latent variable, >= 1; None for twice those of an action.
        vae_hidden_size_list: Width of each hidden layer of the encoder of actions and of the decoder, >= 1.
        candidates: Number of actions N of which :meth:`compute_actor` takes the best, >= 1.

    Raises:
        ValueError: If a size is out of its range.

    Example:
        >>> model = BCQ(obs_shape=3, action_shape=1, vae_hidden_size_list=[8])
        >>> model.compute_actor(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    latents: Tensor

    def __init__(
        self,
        obs_shape: ObsShape,
        action_shape: int,
        phi: float = 0.05,
        latent_size: int | None = None,
        vae_hidden_size_list: Sequence[int] = (750, 750),
        candidates: int = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(obs_shape, action_shape, **kwargs)
        require(phi >= 0, "phi", ">= 0", phi)
        require(candidates >= 1, "candidates", ">= 1", candidates)
        check_widths("vae_hidden_size_list", vae_hidden_size_list)
        size = 2 * action_shape if latent_size is None else latent_size
        require(size >= 1, "latent_size", ">= 1", size)
        self.phi, self.latent_size = phi, size
        activation, layer_norm = kwargs.get("activation", "relu"), kwargs.get("layer_norm", False)
        sizes, options = kwargs.get("encoder_hidden_size_list"), kwargs.get("encoder_kwargs")
        encoder = encoder_for(
            obs_shape, kwargs.get("encoder"), sizes, activation, layer_norm, options, keeps_vectors=True
        )
        self.vae = ActionVAE(encoder, action_shape, size, vae_hidden_size_list, activation, layer_norm)
        generator = torch.Generator().manual_seed(0)  # the same in every process
        self.register_buffer("latents", torch.randn(candidates, size, generator=generator), persistent=False)

    def _actor_widths(self, features: int) -> tuple[int, int]:
        return features + self.action_size, self.action_size

    def compute_actor(self, obs: Any, latents: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return ``action``, shape (B, A): of N candidates the one that the first critic values most.

        Args:
            obs: B observations.
            latents: Standard normal numbers, shape (B, N, L); None for the same ``candidates`` of them at all times.
        """
        if latents is None:
            batch = next(iter(nested.leaves(obs))).shape[0]  # without len(), which an export would keep as a constant
            latents = self.latents.expand(batch, *self.latents.shape)
        action = self.perturb(obs, self.decode(obs, latents))
        best = self.values_of(obs, action, members=1)[0].argmax(1)
        return {"action": action.gather(1, best.view(-1, 1, 1).expand(-1, 1, action.shape[2])).squeeze(1)}

    def encode(self, obs: Any, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log standard deviation, shapes (B, L), of the latent variable of B actions."""
        output = full_precision(self.vae.encode(torch.cat([self.vae.encoder(obs), action], 1)))
        mu, log_sigma = output.chunk(2, 1)
        return mu, log_sigma.clamp(*LOG_SIGMA_RANGE)

    def reconstruct(self, obs: Any, latent: Tensor) -> Tensor:
        """Return normalised actions, shape (B, A) or (B, N, A), for latent variables, (B, L) or (B, N, L)."""
        return full_precision(self.vae.decode(_joined(self.vae.encoder(obs), latent))).tanh()

    def decode(self, obs: Any, noise: Tensor) -> Tensor:
        """Return normalised actions as the data have, shapes as in :meth:`reconstruct`, for standard normal noise.

        As in the authors' code, the noise is clipped to [-0.5, 0.5].
        """
        return self.reconstruct(obs, noise.clamp(-LATENT_BOUND, LATENT_BOUND))

    def perturb(self, obs: Any, action: Tensor) -> Tensor:
        """Return actions, shape (B, A) or (B, N, A), that the actor has shifted by at most ``phi``, within [-1, 1]."""
        encoder = self.actor.encoder
        features = self.critic.fixed_features(obs) if encoder is None else encoder(obs)
        x = _joined(features, action)
        output = self.actor.head(x.flatten(0, -2))
        shift = full_precision(output[0] if output.ndim == 3 else output).view(action.shape)
        return (action + self.phi * shift.tanh()).clamp(-1, 1)

    def values_of(self, obs: Any, action: Tensor, members: int | None = None) -> Tensor:
        """Return the values of N actions for each observation, shape (E, B, N), for actions, shape (B, N, A)."""
        x = _joined(self.critic.encoder(obs), action)
        found: Tensor = self.values(self.critic.head(x.flatten(0, 1), members))["q_value"]
        values: Tensor = found.unflatten(1, action.shape[:2])
        return values


def _joined(features: Tensor, columns: Tensor) -> Tensor:
    """Return features (B, F) next to columns, shape (B, C) or (B, N, C)."""
    if columns.ndim == 3:
        features = features.unsqueeze(1).expand(-1, columns.shape[1], -1)
    return torch.cat([features, columns.to(features.dtype)], -1)
