"""The recurrent state-space model of DreamerV3 (Hafner et al. 2023, section "World model", eq. 1).

A latent state has a deterministic part, which a recurrent layer computes from the state and the action before, and a
discrete part: G one-hot vectors of K classes, drawn from the prior, or from the posterior which knows the observation.

The recurrent layer is a gated unit whose matrix for the deterministic part is block-diagonal, so its parameters grow
linearly with the number of blocks and not quadratically.

Shapes: L rows of a sequence, H steps of imagination, B sequences or envs, D size of the deterministic part, G latent
variables of K classes, A size of an action, U units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding.model.world.layers import BlockLinear, Dense, RMSNorm, dense, linear
from lightning_ding.rl.world_models import draw_index, one_hot_of, wide, with_uniform

UNIFORM = 0.01  # share of the uniform distribution in all categorical ones


class RSSM(nn.Module):
    """Recurrent dynamics of latent states, with a prior and a posterior of their discrete part.

    Args:
        action_size: A.
        token_size: Features of an observation.
        deter: D, a multiple of ``blocks``.
        hidden: U.
        groups: G.
        classes: K.
        blocks: Blocks of the recurrent layer.
    """

    def __init__(
        self, action_size: int, token_size: int, deter: int, hidden: int, groups: int, classes: int, blocks: int
    ) -> None:
        super().__init__()
        self.deter, self.groups, self.classes, self.blocks = deter, groups, classes, blocks
        self.from_deter = Dense(deter, hidden)
        self.from_stoch = Dense(groups * classes, hidden)
        self.from_action = Dense(action_size, hidden)
        fan_in = deter // blocks + 3 * hidden
        self.mix_deter = BlockLinear(deter, deter, blocks, fan_in)
        self.mix_inputs = linear(3 * hidden, deter, bias=False, fan_in=fan_in)  # each block reads all of them
        self.mix_norm = RMSNorm(deter)
        self.gates = BlockLinear(deter, 3 * deter, blocks)
        self.prior_layers = dense((deter, hidden, hidden), groups * classes)
        self.posterior_deter = linear(deter, hidden, fan_in=deter + token_size)
        self.posterior_token = linear(token_size, hidden, bias=False, fan_in=deter + token_size)
        self.posterior_norm = RMSNorm(hidden)
        self.posterior_logit = linear(hidden, groups * classes)

    @property
    def stoch(self) -> int:
        """Size of the discrete part, G K."""
        return self.groups * self.classes

    def step(self, deter: Tensor, stoch: Tensor, action_features: Tensor) -> Tensor:
        """Return the next deterministic part, shape (B, D).

        Args:
            deter: Deterministic part, shape (B, D).
            stoch: Discrete part, shape (B, G K).
            action_features: Result of ``from_action`` for the action, shape (B, U).
        """
        inputs = torch.cat([self.from_deter(deter), self.from_stoch(stoch), action_features], -1)
        x = F.silu(self.mix_norm(self.mix_deter(deter) + self.mix_inputs(inputs)))
        parts = wide(self.gates(x)).unflatten(-1, (self.blocks, -1))  # each block has its three gates
        reset, candidate, update = (part.flatten(1) for part in parts.chunk(3, -1))
        update = torch.sigmoid(update - 1)
        return update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * deter

    def prior(self, deter: Tensor) -> Tensor:
        """Return the probabilities of the discrete part without an observation, shape (..., G, K)."""
        return self._probability(self.prior_layers(deter))

    def posterior(self, deter: Tensor, token_part: Tensor) -> Tensor:
        """Return the probabilities of the discrete part with an observation, shape (..., G, K).

        Args:
            deter: Deterministic part, shape (..., D).
            token_part: Result of ``posterior_token`` for the features of the observation, shape (..., U).
        """
        x = F.silu(self.posterior_norm(self.posterior_deter(deter) + token_part))
        return self._probability(self.posterior_logit(x))

    def observe_step(
        self, deter: Tensor, stoch: Tensor, action_features: Tensor, keeps: Tensor, token_part: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return both parts of the next state and the posterior, for an observation.

        Args:
            deter: Deterministic part, shape (B, D).
            stoch: Discrete part, shape (B, G K).
            action_features: Result of ``from_action`` for the action, shape (B, U).
            keeps: 0 where an episode starts with the observation, else 1, shape (B, 1).
            token_part: Result of ``posterior_token`` for the features of the observation, shape (B, U).
            noise: Uniform numbers that select the classes, shape (B, G).
        """
        deter = self.step(deter * keeps, stoch * keeps, action_features)
        posterior = self.posterior(deter, token_part)
        return deter, one_hot_of(draw_index(posterior, noise), posterior).flatten(1), posterior

    def imagine_step(self, deter: Tensor, stoch: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return both parts of the next state, without an observation.

        Args:
            deter: Deterministic part, shape (B, D).
            stoch: Discrete part, shape (B, G K).
            action: Action, shape (B, A).
            noise: Uniform numbers that select the classes, shape (B, G).
        """
        deter = self.step(deter, stoch, self.from_action(action.clamp(-1, 1)))
        prior = self.prior(deter)
        return deter, one_hot_of(draw_index(prior, noise), prior).flatten(1)

    def observe(
        self,
        deter: Tensor,
        stoch: Tensor,
        action: Tensor,
        tokens: Tensor,
        is_first: Tensor,
        noise: Tensor,
        step: Callable[..., Any] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the latent states of sequences: both parts and the posterior, leading axes (L, B).

        Args:
            deter: Deterministic part before the first row, shape (B, D).
            stoch: Discrete part before it, shape (B, G K).
            action: Action before each row, shape (L, B, A).
            tokens: Features of the observations, shape (L, B, F).
            is_first: Whether a row is the first of an episode, shape (L, B): the state and action before it are zero.
            noise: Uniform numbers that select the classes, shape (L, B, G).
            step: Does what ``observe_step`` does; None calls that.
        """
        step = step or self.observe_step
        keeps = torch.logical_not(is_first).to(deter).unsqueeze(-1)
        actions, parts = self.from_action(action * keeps), self.posterior_token(tokens)
        deters, stochs, posteriors = list[Tensor](), list[Tensor](), list[Tensor]()
        for row in range(len(action)):
            deter, stoch, posterior = step(deter, stoch, actions[row], keeps[row], parts[row], noise[row])
            deters.append(deter)
            stochs.append(stoch)
            posteriors.append(posterior)
        return torch.stack(deters), torch.stack(stochs), torch.stack(posteriors)

    def imagine(
        self,
        deter: Tensor,
        stoch: Tensor,
        act: Callable[[Tensor, int], Tensor],
        noise: Tensor,
        step: Callable[..., Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return imagined latent states, shape (H + 1, B, D + G K), and the actions taken in them, shape (H, B, A).

        Args:
            deter: Deterministic part at the start, shape (B, D).
            stoch: Discrete part at the start, shape (B, G K).
            act: Returns actions, shape (B, A), for latent states and the number of the step; outside of [-1, 1] they
                have the effect of -1 or 1.
            noise: Uniform numbers that select the classes, shape (H, B, G).
            step: Does what ``imagine_step`` does; None calls that.
        """
        step = step or self.imagine_step
        states, actions = [torch.cat([deter, stoch], -1)], list[Tensor]()
        for number in range(len(noise)):
            actions.append(act(states[-1], number))
            deter, stoch = step(deter, stoch, actions[-1], noise[number])
            states.append(torch.cat([deter, stoch], -1))
        return torch.stack(states), torch.stack(actions)

    def _probability(self, logit: Tensor) -> Tensor:
        return with_uniform(logit.unflatten(-1, (self.groups, self.classes)), UNIFORM)
