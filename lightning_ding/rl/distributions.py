"""Distributions over actions, built from the output of an actor network.

They replace ``torch.distributions``, which validates and broadcasts its arguments at every call.

Shapes: B batch, A actions of a discrete action or dimensions of a continuous one, D dimensions of a multi-discrete one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2)


class Distribution(ABC):
    """Distributions of B actions. An action is a tensor, or a dict of tensors if it is hybrid."""

    @abstractmethod
    def sample(self, rng: np.random.Generator | None) -> Any:
        """Return sampled actions on the device of the network's output.

        ``rng`` is the source of the noise; None draws it there, from the global generator of torch.
        """

    @abstractmethod
    def mode(self) -> Any:
        """Return the most probable actions."""

    @abstractmethod
    def log_prob(self, action: Any) -> Tensor:
        """Return log probabilities (continuous actions: log densities) of actions, shape (B,)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape (B,)."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Return KL(self || other) in nats, shape (B,), for a distribution of the same class."""


def expectation(log_p: Tensor, value: Tensor) -> Tensor:
    """Return the sum over actions of p(a) value(a), without the actions whose probability is exactly 0, shape (B,).

    The value of such an action has no part in the result or its gradient, not even an infinite one. Log probabilities
    of illegal actions are about -1.7e38, so a small multiple of them overflows, and 0 times infinity is not a number.

    Args:
        log_p: Log probabilities, shape (B, A).
        value: Value of each action, shape (B, A).

    Example:
        >>> expectation(torch.tensor([[0.0, -1e38]]), torch.tensor([[2.0, -torch.inf]]))
        tensor([2.])
    """
    p = log_p.exp()
    return (p * value.masked_fill(p == 0, 0.0)).sum(-1)


class Categorical(Distribution):
    """A choice of one of A actions.

    The logit of an illegal action is finite and so low that its probability is exactly 0. Sums over actions leave out
    what has no probability, see :func:`expectation`. A row without legal actions, as at a terminal observation, is
    uniform. If an action is legal here and illegal in ``other``, the KL is about 1e38 times its probability instead of
    infinity.

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

    def sample(self, rng: np.random.Generator | None) -> Tensor:
        """Return actions, shape (B,), sampled by the Gumbel-max trick (Gumbel 1954)."""
        if rng is None:
            tiny = torch.finfo(self.log_p.dtype).tiny
            return (self.log_p - torch.empty_like(self.log_p).exponential_().clamp_(min=tiny).log_()).argmax(-1)
        return (self.log_p + torch.from_numpy(rng.gumbel(size=self.log_p.shape)).to(self.log_p)).argmax(-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, shape (B,)."""
        return self.log_p.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log probabilities, shape (B,), of actions, shape (B,), integers in [0, A)."""
        return self.log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy, shape (B,)."""
        return -expectation(self.log_p, self.log_p)

    def kl(self, other: Categorical) -> Tensor:
        """Return KL(self || other), shape (B,)."""
        return expectation(self.log_p, self.log_p - other.log_p)


class MultiCategorical(Distribution):
    """D independent categorical actions.

    Args:
        logits: Unnormalised log probabilities, one tensor for each dimension, shapes (B, A_i).
        masks: Non-zero where an action is legal, one tensor for each dimension, shapes (B, A_i); None means that all
            are.
    """

    def __init__(self, logits: Sequence[Tensor], masks: Sequence[Tensor] | None = None) -> None:
        pairs = zip(logits, [None] * len(logits) if masks is None else masks, strict=True)
        self.parts = [Categorical(logit, mask) for logit, mask in pairs]

    def sample(self, rng: np.random.Generator | None) -> Tensor:
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
    """A continuous action with A independent, normally distributed dimensions.

    Args:
        mu: Means, shape (B, A).
        sigma: Standard deviations, > 0, shape (B, A).
    """

    def __init__(self, mu: Tensor, sigma: Tensor) -> None:
        self.mu, self.sigma = mu, sigma

    def sample(self, rng: np.random.Generator | None) -> Tensor:
        """Return actions, shape (B, A), differentiable in mean and standard deviation."""
        if rng is None:
            return torch.addcmul(self.mu, self.sigma, torch.randn_like(self.mu))
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
    """A discrete choice and independent continuous arguments; probabilities are joint probabilities.

    Args:
        action_type: Distribution of the choice.
        action_args: Distribution of the arguments.
    """

    def __init__(self, action_type: Categorical, action_args: DiagonalGaussian) -> None:
        self.action_type, self.action_args = action_type, action_args

    def sample(self, rng: np.random.Generator | None) -> dict[str, Tensor]:
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
        logit: A tensor (B, A) for a discrete action; a list of tensors (B, A_i) for a multi-discrete one; ``mu`` and
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


def epsilon_greedy_distribution(q: Tensor, epsilon: float) -> Categorical:
    """Return the distribution of epsilon-greedy actions: the best one, or with probability epsilon any legal one.

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        epsilon: Probability of a uniformly random legal action, in [0, 1].

    Example:
        >>> epsilon_greedy_distribution(torch.tensor([[3.0, 1.0, -torch.inf]]), 0.5).log_p.exp()
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    legal = (q != -torch.inf).to(q.dtype)
    greedy = torch.zeros_like(q).scatter_(-1, q.argmax(-1, keepdim=True), 1.0)
    return Categorical(torch.lerp(greedy, legal / legal.sum(-1, keepdim=True), epsilon).log())


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def squashed_gaussian_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(u), u = mu + sigma * noise, and their log densities (Haarnoja et al. 2018, eq. 21).

    See https://arxiv.org/abs/1812.05905, appendix C. log(1 - tanh(u)^2) is computed as
    2 (log 2 - u - softplus(-2 u)), which stays exact where tanh(u) rounds to 1.

    Args:
        mu: Means before squashing, shape (B, A).
        log_sigma: Logarithms of the standard deviations before squashing, shape (B, A).
        noise: Standard normal noise, shape (B, A).

    Returns:
        Actions in [-1, 1], shape (B, A), and log densities, shape (B,); both differentiable in ``mu`` and
        ``log_sigma``.

    Example:
        >>> action, log_prob = squashed_gaussian_sample(*torch.zeros(3, 1, 1))
        >>> action.item(), round(log_prob.item(), 4)  # the log density of a standard normal at 0
        (0.0, -0.9189)
    """
    u = torch.addcmul(mu, log_sigma.exp(), noise)
    return u.tanh(), _squashed_log_prob(u, log_sigma, noise)


def squashed_gaussian_log_prob(mu: Tensor, log_sigma: Tensor, action: Tensor) -> Tensor:
    """Return log densities, shape (B,), of actions, shape (B, A), in (-1, 1); see ``squashed_gaussian_sample``."""
    u = action.atanh()
    return _squashed_log_prob(u, log_sigma, (u - mu) / log_sigma.exp())


def _squashed_log_prob(u: Tensor, log_sigma: Tensor, noise: Tensor) -> Tensor:
    log_slope = 2 * (LOG_2 - u - F.softplus(-2 * u))
    return -(0.5 * noise.square() + log_sigma + log_slope).sum(-1) - u.shape[-1] * HALF_LOG_TWO_PI
