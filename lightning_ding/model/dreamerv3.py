"""The networks of DreamerV3: a world model, and an actor and a critic that read its latent states.

Shapes: B batch, S size of a recurrent state, Z size of a latent state (D + G K), A size of an action, N bins.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.heads import check_action_shape
from lightning_ding.model.world.layers import dense
from lightning_ding.model.world.observations import ObservationDecoder, ObservationEncoder, ObservationInput
from lightning_ding.model.world.rssm import RSSM, UNIFORM
from lightning_ding.registry import MODEL_REGISTRY

SMALLEST_STD, LARGEST_STD = 0.1, 1.0  # of continuous actions
ACTOR_LAYERS = CRITIC_LAYERS = 3


class Size(NamedTuple):
    """Widths of the networks (Hafner et al. 2023, table "Model sizes")."""

    deter: int
    hidden: int
    classes: int
    depth: int
    units: int


SIZES = {
    "1m": Size(512, 64, 4, 4, 64),
    "12m": Size(2048, 256, 16, 16, 256),
    "25m": Size(3072, 384, 24, 24, 384),
    "50m": Size(4096, 512, 32, 32, 512),
    "100m": Size(6144, 768, 48, 48, 768),
    "200m": Size(8192, 1024, 64, 64, 1024),
    "400m": Size(12288, 1536, 96, 96, 1536),
}


@MODEL_REGISTRY.register("dreamerv3")
class DreamerV3(nn.Module):
    """A recurrent world model of observations, rewards and episodes, and an actor and a critic of its states.

    The recurrent state of an env is the latent state before an observation and the action before it: the deterministic
    part, the class of each latent variable, counted from 1, and the action. At the start of an episode it is zero.

    Args:
        obs_shape: Size, shape or description of an observation, or a dict of these; without an action mask.
        action_shape: Number of actions, or dimensions of a continuous action.
        action_space: Kind of actions; None for discrete ones.
        size: Named widths, see ``SIZES``.
        deter: Size of the deterministic part, a multiple of ``blocks``; None for that of ``size``.
        hidden: Width of the layers of the dynamics; None for that of ``size``.
        classes: Classes of each latent variable; None for those of ``size``.
        depth: Channels of images; None for those of ``size``.
        units: Width of all other layers; None for that of ``size``.
        groups: Number of latent variables.
        blocks: Blocks of the recurrent layer.
        bins: Bins of rewards and values, odd.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> network = DreamerV3(obs_shape=4, action_shape=2)
        >>> network.act(torch.zeros(3, 4), network.first_state(3))["state"].shape
        torch.Size([3, 546])
    """

    bins: Tensor

    def __init__(
        self,
        obs_shape: Any,
        action_shape: int,
        action_space: Literal["discrete", "continuous"] | None = None,
        size: str = "1m",
        deter: int | None = None,
        hidden: int | None = None,
        classes: int | None = None,
        depth: int | None = None,
        units: int | None = None,
        groups: int = 32,
        blocks: int = 8,
        bins: int = 255,
    ) -> None:
        super().__init__()
        check_action_shape(action_shape)
        require(size in SIZES, "model.size", f"one of {list(SIZES)}", size)
        given = (deter, hidden, classes, depth, units)
        widths = Size(*(known if own is None else own for own, known in zip(given, SIZES[size], strict=True)))
        require(widths.deter % blocks == 0, "model.deter", f"a multiple of blocks ({blocks})", widths.deter)
        self.is_discrete, self.action_size = action_space != "continuous", action_shape
        self.inputs, stoch = ObservationInput(obs_shape), groups * widths.classes
        latent = widths.deter + stoch
        self.encoder = ObservationEncoder(self.inputs, widths.units, widths.depth)
        self.decoder = ObservationDecoder(self.inputs, widths.units, widths.depth, widths.deter, stoch, blocks)
        sizes = (widths.deter, widths.hidden, groups, widths.classes, blocks)
        self.rssm = RSSM(action_shape, self.encoder.output_size, *sizes)
        self.reward = dense((latent, widths.units), bins, scale=0.0)
        self.alive = dense((latent, widths.units), 1)
        outputs = action_shape if self.is_discrete else 2 * action_shape
        self.actor = dense((latent, *[widths.units] * ACTOR_LAYERS), outputs, scale=0.01)
        self.critic = dense((latent, *[widths.units] * CRITIC_LAYERS), bins, scale=0.0)
        self.register_buffer("bins", rl.two_hot_bins(bins), persistent=False)

    # ------------------------------------------------------------------ recurrent states

    @property
    def state_size(self) -> int:
        """Size of the recurrent state of one env, S."""
        return self.rssm.deter + self.rssm.groups + self.action_size

    def first_state(self, batch_size: int) -> Tensor:
        """Return the recurrent state at the start of an episode, zeros of shape (B, S)."""
        return torch.zeros(batch_size, self.state_size, device=self.bins.device, dtype=self.bins.dtype)

    def unpack(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the deterministic part, the discrete part and the action of recurrent states, shape (B, S)."""
        deter, number, action = state.split([self.rssm.deter, self.rssm.groups, self.action_size], -1)
        classes = torch.arange(1, self.rssm.classes + 1, device=state.device)
        stoch = (number.round().long().unsqueeze(-1) == classes).to(state.dtype)
        return deter, stoch.flatten(1), action

    def latent(self, obs: Any, state: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the latent states of observations, shape (B, Z), and the recurrent states but for the action.

        Args:
            obs: Observations, leading axis B.
            state: Recurrent states before them, shape (B, S).
            noise: Uniform numbers that select the classes, shape (B, G); None takes the most probable classes.
        """
        deter, stoch, action = self.unpack(state)
        deter = self.rssm.step(deter, stoch, self.rssm.from_action(action))
        posterior = self.rssm.posterior(deter, self.rssm.posterior_token(self.encoder(self.inputs(obs))))
        index = posterior.argmax(-1) if noise is None else rl.draw_index(posterior, noise)
        stoch = rl.one_hot_of(index, posterior).flatten(1)
        return torch.cat([deter, stoch], -1), torch.cat([deter, (index + 1).to(deter)], -1)

    def act(self, obs: Any, state: Tensor) -> dict[str, Tensor]:
        """Return the greedy ``action``, counted from 0 or in [-1, 1], and the ``state`` after it, shape (B, S).

        ``logit`` has the log probabilities of discrete actions or the means of continuous ones, shape (B, A).
        """
        latent, known = self.latent(obs, state)
        policy = self.policy(latent)
        action, logit = policy.mode(), policy.log_p if isinstance(policy, rl.Categorical) else policy.mu
        return {"action": action, "logit": logit, "state": torch.cat([known, self.encoded(action).to(known)], -1)}

    # ------------------------------------------------------------------ heads

    def policy(self, latent: Tensor) -> rl.Categorical | rl.DiagonalGaussian:
        """Return the distributions of the actions in latent states, shape (..., Z)."""
        output = rl.wide(self.actor(latent))
        if self.is_discrete:
            return rl.Categorical(rl.with_uniform(output, UNIFORM).log())
        mu, spread = output.chunk(2, -1)
        sigma = SMALLEST_STD + (LARGEST_STD - SMALLEST_STD) * torch.sigmoid(spread + 2.0)
        return rl.DiagonalGaussian(torch.tanh(mu), sigma)

    def sampled(self, latent: Tensor, noise: Tensor) -> Tensor:
        """Return actions: integers, shape (...), or numbers that may be outside of [-1, 1], shape (..., A).

        Args:
            latent: Latent states, shape (..., Z).
            noise: Uniform numbers, shape (...), or standard normal ones, shape (..., A).
        """
        policy = self.policy(latent)
        if isinstance(policy, rl.Categorical):
            return rl.draw_index(policy.log_p.exp(), noise)
        return torch.addcmul(policy.mu, policy.sigma, noise)

    def encoded(self, action: Tensor) -> Tensor:
        """Return actions as the dynamics read them: one-hot vectors, or numbers in [-1, 1], shape (..., A)."""
        if self.is_discrete:
            place = torch.arange(self.action_size, device=action.device)
            return (action.unsqueeze(-1) == place).to(self.bins.dtype)
        return action.clamp(-1, 1)

    def continues(self, latent: Tensor) -> Tensor:
        """Return the logits of the probabilities that episodes continue after latent states, shape (...)."""
        return rl.wide(self.alive(latent)).squeeze(-1)
