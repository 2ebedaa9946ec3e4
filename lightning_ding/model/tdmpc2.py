"""The networks of TD-MPC2: a model of the env in a latent space without a decoder, critics, and a policy prior.

Paper: Hansen et al. 2024, section 3.1 (https://arxiv.org/abs/2310.16828). Every hidden layer is normalised before Mish.
Latent states are normalised to groups of probabilities.

Shapes: B batch, Z size of a latent state, A dimensions of an action, E critics, N bins, H steps of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.encoder import holds_image, is_described, kept_vector
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.heads import full_precision
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import MODEL_REGISTRY
from lightning_ding.rl.world_models import softmax

LOG_STD = (-10.0, 2.0)
"""Smallest and largest logarithm of the prior's standard deviations before squashing."""
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
INIT_STD = 0.02


class Widths(NamedTuple):
    """Widths of the networks, those of the authors' code."""

    encoder: int
    encoder_layers: int
    hidden: int
    latent: int


SIZES = {
    "1m": Widths(256, 2, 384, 128),
    "5m": Widths(256, 2, 512, 512),
    "19m": Widths(1024, 3, 1024, 768),
    "48m": Widths(1792, 4, 1792, 768),
    "317m": Widths(4096, 5, 4096, 1376),
}


class SimNorm(nn.Module):
    """Simplicial normalisation: a softmax over each group of features (Lavoie et al. 2022).

    See https://arxiv.org/abs/2204.00616.

    Args:
        group: Features of a group V.

    Example:
        >>> SimNorm(2)(torch.zeros(1, 4)).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
    """

    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (..., Z), whose groups sum to 1, of ``x``, whose last axis is a multiple of V."""
        grouped: Tensor = full_precision(x).unflatten(-1, (-1, self.group))
        return softmax(grouped).flatten(-2)


@MODEL_REGISTRY.register("tdmpc2")
class TDMPC2(nn.Module):
    """A latent model of an env with vector observations and continuous actions, critics, and a policy prior.

    Args:
        obs_shape: Size, shape or description of an observation that is a vector.
        action_shape: Dimensions of an action.
        size: Named widths, see ``SIZES``.
        encoder: Width of the encoder's hidden layers; None for that of ``size``.
        encoder_layers: Layers of the encoder, the one of latent states included, >= 1; None for those of ``size``.
        hidden: Width of the two hidden layers of all other networks; None for that of ``size``.
        latent: Size of a latent state Z, a multiple of ``simplex``; None for that of ``size``.
        simplex: Features of each group of a latent state.
        ensemble_num: Number of critics, >= 2.
        dropout: Probability that a hidden unit of a critic is left out in updates, in [0, 1).
        bins: Bins of rewards and values, odd.
        largest_bin: symlog of the last bin, > 0.
        predicts_end: Whether there is a network that predicts terminations.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> network = TDMPC2(obs_shape=3, action_shape=2)
        >>> latent = network.encoder(torch.zeros(5, 3))
        >>> latent.shape, network.prior(latent)[0].shape
        (torch.Size([5, 128]), torch.Size([5, 2]))
    """

    bins: Tensor

    def __init__(
        self,
        obs_shape: Any,
        action_shape: int,
        size: Literal["1m", "5m", "19m", "48m", "317m"] = "1m",
        encoder: int | None = None,
        encoder_layers: int | None = None,
        hidden: int | None = None,
        latent: int | None = None,
        simplex: int = 8,
        ensemble_num: int = 5,
        dropout: float = 0.01,
        bins: int = 101,
        largest_bin: float = 10.0,
        predicts_end: bool = True,
    ) -> None:
        super().__init__()
        require(size in SIZES, "model.size", f"one of {list(SIZES)}", size)
        given = (encoder, encoder_layers, hidden, latent)
        widths = Widths(*(known if own is None else own for own, known in zip(given, SIZES[size], strict=True)))
        require(widths.latent % simplex == 0, "model.latent", f"a multiple of simplex ({simplex})", widths.latent)
        is_vector = not holds_image(obs_shape) and (is_described(obs_shape) or not isinstance(obs_shape, Mapping))
        require(is_vector, "model.obs_shape", "that of a vector", obs_shape)
        self.action_size, self.ensemble_num = action_shape, ensemble_num
        flat = kept_vector(obs_shape)
        sizes = [flat.output_size, *[widths.encoder] * (widths.encoder_layers - 1)]
        self.encoder = nn.Sequential(flat, *_latent_layers(sizes, widths.latent, simplex))
        hiddens, both = [widths.hidden] * 2, widths.latent + action_shape
        self.dynamics = nn.Sequential(*_latent_layers([both, *hiddens], widths.latent, simplex))
        self.reward = _head([both, *hiddens, bins])
        self.end = _head([widths.latent, *hiddens, 1]) if predicts_end else None
        self.actor = _head([widths.latent, *hiddens, 2 * action_shape])
        self.critic = EnsembleMLP(ensemble_num, [both, *hiddens, bins], "mish", layer_norm=True, dropout=dropout)
        below = torch.linspace(-largest_bin, 0, (bins + 1) // 2)
        self.register_buffer("bins", torch.cat([below, -below[:-1].flip(0)]), persistent=False)
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        """Draw small weights, with biases of 0; rewards and values are 0 at first."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        for weight, bias in zip(self.critic.weights, self.critic.biases, strict=True):
            nn.init.trunc_normal_(weight, std=INIT_STD)
            nn.init.zeros_(bias)
        nn.init.zeros_(self.critic.weights[-1])
        nn.init.zeros_(self.reward.layers[-1].weight)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ the model

    def next(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the predicted next latent states, shape (..., Z), of states and actions, shape (..., A)."""
        return self.dynamics(torch.cat([latent, action], -1))  # type: ignore[no-any-return]

    def reward_logit(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the unnormalised log probabilities of the rewards' bins, shape (..., N)."""
        return full_precision(self.reward(torch.cat([latent, action], -1)))

    def end_logit(self, latent: Tensor) -> Tensor:
        """Return the logits of the probabilities that a termination led to latent states, shape (...).

        Raises:
            ValueError: If the model does not predict terminations.
        """
        require(self.end is not None, "model.predicts_end", "True to predict terminations", False)
        return full_precision(self.end(latent)).squeeze(-1)  # type: ignore[misc]

    def value_logit(
        self,
        latent: Tensor,
        action: Tensor,
        members: Tensor | None = None,
        dropout: Tensor | None = None,
        critic: Any = None,
    ) -> Tensor:
        """Return the unnormalised log probabilities of the values' bins, shape (E, ..., N).

        Args:
            latent: Latent states, shape (..., Z).
            action: Actions in [-1, 1], shape (..., A).
            members: Indices of the critics to evaluate; None for all of them.
            dropout: Random integers in [0, 2^32), shape (...), which leave out units; None leaves out none.
            critic: Critics to use, such as a target network; None for those of this network.
        """
        x = torch.cat([latent, action], -1)
        flat = None if dropout is None else dropout.flatten()
        found = (critic or self.critic)(x.flatten(0, -2), members, flat)
        return found.unflatten(1, x.shape[:-1])  # type: ignore[no-any-return]

    def decoded(self, logit: Tensor) -> Tensor:
        """Return the predicted rewards or values, shape (...), of log probabilities of their bins, shape (..., N)."""
        return rl.symexp(rl.two_hot_mean(logit, self.bins))

    def cross_entropy(self, logit: Tensor, target: Tensor) -> Tensor:
        """Return the losses of predictions, shape (...), for the two-hot weights of symlog of the targets.

        Args:
            logit: Unnormalised log probabilities of the bins, shape (..., N).
            target: Rewards or values, shape (...).
        """
        return rl.two_hot_loss(logit, self.bins, rl.symlog(target))

    # ------------------------------------------------------------------ acting

    def prior(self, latent: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return actions of the policy prior, shape (..., A), and the log densities before squashing, shape (...).

        Args:
            latent: Latent states, shape (..., Z).
            noise: Standard normal numbers, shape (..., A); None for the means.

        Returns:
            Actions in [-1, 1], and the log densities of u, where the action is tanh(u).
        """
        mu, spread = full_precision(self.actor(latent)).chunk(2, -1)
        low, high = LOG_STD
        log_std = low + 0.5 * (high - low) * (spread.tanh() + 1)
        if noise is None:
            return mu.tanh(), -(log_std + HALF_LOG_TWO_PI).sum(-1)
        action = torch.addcmul(mu, log_std.exp(), noise).tanh()
        return action, -(0.5 * noise.square() + log_std + HALF_LOG_TWO_PI).sum(-1)

    def rollout(self, latent: Tensor, noise: Tensor) -> Tensor:
        """Return the actions of the prior in imagined steps, shape (..., H, A).

        Args:
            latent: Latent states to start from, shape (..., Z).
            noise: Standard normal numbers, shape (H, ..., A).
        """
        taken = list[Tensor]()
        for step, numbers in enumerate(noise):
            taken.append(self.prior(latent, numbers)[0])
            if step < len(noise) - 1:
                latent = self.next(latent, taken[-1])
        return torch.stack(taken, -2)

    def plan_value(self, latent: Tensor, plan: Tensor, discount: float, noise: Tensor, members: Tensor) -> Tensor:
        """Return the predicted returns of plans, shape (...): H rewards and the value after them (section 3.2).

        Nothing counts after a predicted termination, one whose probability is above 0.5.

        Args:
            latent: Latent states to start from, shape (..., Z).
            plan: Actions, shape (..., H, A).
            discount: gamma, in [0, 1].
            noise: Standard normal numbers for the action of the prior after the plan, shape (..., A).
            members: Indices of the critics whose mean is the last value.
        """
        total, weight = latent.new_zeros(latent.shape[:-1]), latent.new_ones(latent.shape[:-1])
        for action in plan.unbind(-2):
            total = total + weight * self.decoded(self.reward_logit(latent, action))
            latent = self.next(latent, action)
            weight = discount * weight
            if self.end is not None:
                weight = weight * (self.end_logit(latent) <= 0)
        action, _ = self.prior(latent, noise)
        return total + weight * self.decoded(self.value_logit(latent, action, members)).mean(0)


def _head(sizes: Sequence[int]) -> MLP:
    return MLP(sizes, "mish", activate_last=False, layer_norm=True)


def _latent_layers(sizes: Sequence[int], latent: int, simplex: int) -> tuple[nn.Module, ...]:
    """Return layers from the first width to latent states."""
    return _head([*sizes, latent]), nn.LayerNorm(latent), SimNorm(simplex)
