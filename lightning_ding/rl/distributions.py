"""Distributions over actions, made of what an actor network gives.

They do only what acting and learning need; ``torch.distributions`` checks and expands at every call.

Shapes: B batch, A actions of a discrete action or dimensions of a continuous one, D dimensions of a multi-discrete one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Distribution(ABC):
    """What B actions are drawn from. An action is a tensor, or a dict of them if it is hybrid."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Any:
        """Return actions drawn with the noise of ``rng``, on the device of the network's output."""

    @abstractmethod
    def mode(self) -> Any:
        """Return the most probable actions."""

    @abstractmethod
    def log_prob(self, action: Any) -> Tensor:
        """Return the log probability (density, if continuous) of actions, shape (B,)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape (B,)."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Return KL(self || other) in nats, shape (B,), for a distribution of the same class."""


class Categorical(Distribution):
    """One of A actions.

    Illegal actions get so low a logit that their probability is exactly 0, and yet a finite one: entropy, KL and
    gradients need no special case. A row without any legal action (a terminal observation) is uniform. Where an action
    is legal here and not in ``other``, the KL is about 1e38 times its probability in place of infinity.

    Args:
        logit: Unnormalised log probabilities, shape (B, A).
        mask: Non-zero where an action is legal, shape (B, A); None means that all are.

    Example:
        >>> distribution = Categorical(torch.zeros(1, 3), mask=torch.tensor([[1, 1, 0]]))
        >>> distribution.log_p.exp()
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    def __init__(self, logit: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            logit = logit.masked_fill(mask == 0, 0.5 * torch.finfo(logit.dtype).min)
        self.log_p = logit.log_softmax(-1)  # (B, A)

    def sample(self, rng: np.random.Generator) -> Tensor:
        """Return actions, shape (B,): the largest log probability plus Gumbel noise (Gumbel 1954)."""
        return (self.log_p + torch.from_numpy(rng.gumbel(size=self.log_p.shape)).to(self.log_p)).argmax(-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, shape (B,)."""
        return self.log_p.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log probabilities, shape (B,), of actions, shape (B,), integers in [0, A)."""
        return self.log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy, shape (B,)."""
        return -(self.log_p.exp() * self.log_p).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """Return KL(self || other), shape (B,)."""
        return (self.log_p.exp() * (self.log_p - other.log_p)).sum(-1)


class MultiCategorical(Distribution):
    """D independent categorical actions.

    Args:
        logits: Unnormalised log probabilities of each dimension, D of them, shapes (B, A_i).
        masks: Non-zero where an action is legal, D of them, shapes (B, A_i); None means that all are.
    """

    def __init__(self, logits: Sequence[Tensor], masks: Sequence[Tensor] | None = None) -> None:
        pairs = zip(logits, [None] * len(logits) if masks is None else masks, strict=True)
        self.parts = [Categorical(logit, mask) for logit, mask in pairs]

    def sample(self, rng: np.random.Generator) -> Tensor:
        """Return actions, shape (B, D)."""
        return torch.stack([part.sample(rng) for part in self.parts], dim=-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, shape (B, D)."""
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return joint log probabilities, shape (B,), of actions, shape (B, D)."""
        return _sum([part.log_prob(a) for part, a in zip(self.parts, action.unbind(-1), strict=True)])

    def entropy(self) -> Tensor:
        """Return the joint entropy, shape (B,)."""
        return _sum([part.entropy() for part in self.parts])

    def kl(self, other: MultiCategorical) -> Tensor:
        """Return KL(self || other), shape (B,)."""
        return _sum([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])


class DiagonalGaussian(Distribution):
    """A continuous action of A independent normal dimensions.

    Args:
        mu: Means, shape (B, A).
        sigma: Standard deviations, > 0, shape (B, A).
    """

    def __init__(self, mu: Tensor, sigma: Tensor) -> None:
        self.mu, self.sigma = mu, sigma

    def sample(self, rng: np.random.Generator) -> Tensor:
        """Return actions, shape (B, A), differentiable in mean and standard deviation."""
        noise = torch.from_numpy(rng.standard_normal(self.mu.shape, dtype=np.float32)).to(self.mu)
        return torch.addcmul(self.mu, self.sigma, noise)

    def mode(self) -> Tensor:
        """Return the means, shape (B, A)."""
        return self.mu

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log density, shape (B,), of actions, shape (B, A), summed over the dimensions."""
        deviation = (action - self.mu) / self.sigma
        return -(0.5 * deviation.square() + self.sigma.log()).sum(-1) - self.mu.shape[-1] * HALF_LOG_TWO_PI

    def entropy(self) -> Tensor:
        """Return the differential entropy, shape (B,), summed over the dimensions."""
        return self.sigma.log().sum(-1) + self.mu.shape[-1] * (0.5 + HALF_LOG_TWO_PI)

    def kl(self, other: DiagonalGaussian) -> Tensor:
        """Return KL(self || other), shape (B,), summed over the dimensions."""
        ratio = self.sigma / other.sigma
        deviation = (self.mu - other.mu) / other.sigma
        return (0.5 * (ratio.square() + deviation.square() - 1) - ratio.log()).sum(-1)


class HybridDistribution(Distribution):
    """A discrete choice and, independent of it, continuous arguments; probabilities are those of both together.

    Args:
        action_type: Distribution of the choice.
        action_args: Distribution of the arguments.
    """

    def __init__(self, action_type: Categorical, action_args: DiagonalGaussian) -> None:
        self.action_type, self.action_args = action_type, action_args

    def sample(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return ``action_type`` (B,) and ``action_args`` (B, A)."""
        return {"action_type": self.action_type.sample(rng), "action_args": self.action_args.sample(rng)}

    def mode(self) -> dict[str, Tensor]:
        """Return the most probable ``action_type`` (B,) and ``action_args`` (B, A)."""
        return {"action_type": self.action_type.mode(), "action_args": self.action_args.mode()}

    def log_prob(self, action: Mapping[str, Tensor]) -> Tensor:
        """Return joint log probabilities, shape (B,), of ``action_type`` (B,) and ``action_args`` (B, A)."""
        return self.action_type.log_prob(action["action_type"]) + self.action_args.log_prob(action["action_args"])

    def entropy(self) -> Tensor:
        """Return the joint entropy, shape (B,)."""
        return self.action_type.entropy() + self.action_args.entropy()

    def kl(self, other: HybridDistribution) -> Tensor:
        """Return KL(self || other), shape (B,)."""
        return self.action_type.kl(other.action_type) + self.action_args.kl(other.action_args)


def distribution_of(logit: Any, action_mask: Tensor | None = None) -> Distribution:
    """Return the distribution that an actor network's ``logit`` describes.

    Args:
        logit: A tensor (B, A) for a discrete action; a list of them, (B, A_i), for a multi-discrete one; ``mu`` and
            ``sigma``, (B, A), for a continuous one; ``action_type`` (B, K) and ``action_args``, with ``mu`` and
            ``sigma``, for a hybrid one.
        action_mask: Non-zero where an action is legal: (B, A), the masks of all dimensions side by side (B, sum of
            A_i), or (B, K); None means that all are.

    Raises:
        ValueError: If a continuous action comes with a mask.
    """
    if isinstance(logit, Tensor):
        return Categorical(logit, action_mask)
    if isinstance(logit, Mapping):
        if "action_type" in logit:
            args = logit["action_args"]
            choice = Categorical(logit["action_type"], action_mask)
            return HybridDistribution(choice, DiagonalGaussian(args["mu"], args["sigma"]))
        if action_mask is not None:
            raise ValueError(f"action_mask must be None for a continuous action, got {type(action_mask).__name__}")
        return DiagonalGaussian(logit["mu"], logit["sigma"])
    sizes = [part.shape[-1] for part in logit]
    return MultiCategorical(logit, None if action_mask is None else action_mask.split(sizes, dim=-1))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)
