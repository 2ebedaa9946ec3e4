"""The mathematics of DreamerV3: two-hot predictions, discrete latents, and returns of imagined trajectories.

Paper: Hafner et al. 2023 (https://arxiv.org/abs/2301.04104v2), whose equations are meant below.

Shapes: N bins, G latent variables of K classes, L rows of a sequence or of an imagined trajectory, B sequences.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_ding.rl.distributional import mean_return
from lightning_ding.rl.value_scales import symexp

LARGEST_BIN = 20.0  # symlog of the last bin
SHORT = 16  # classes from which on torch's softmax of the last axis is the fastest one
SMALLEST_RANGE = 1.0  # returns that differ by less are not scaled up


def wide(x: Tensor) -> Tensor:
    """Return numbers of 16 bits in 32 bits, and others as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_cache(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast, if it is on, keeps no weights of 16 bits.

    Otherwise the gradients of all rows would be added up in 16 bits, and weights from imagination or from targets,
    which have no gradient, would be used in the losses, whose gradient would not reach them.
    """
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, torch.get_autocast_dtype(device_type), cache_enabled=False)


def two_hot_bins(number: int) -> Tensor:
    """Return values that are symmetric around 0 and evenly spaced after symlog, ascending, shape (N,) (eq. 10).

    Args:
        number: N, odd, >= 3.

    Example:
        >>> two_hot_bins(3)
        tensor([-4.8517e+08,  0.0000e+00,  4.8517e+08])
    """
    half = symexp(torch.linspace(-LARGEST_BIN, 0, (number + 1) // 2))
    return torch.cat([half, -half[:-1].flip(0)])


def two_hot(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers and the weights of two neighbouring bins whose mean is the value, shapes (..., 2) (eq. 9).

    Args:
        x: Values, shape (...); those beyond the bins are clipped to them.
        bins: Ascending values, shape (N,).

    Example:
        >>> two_hot(torch.tensor([0.5, 9.0]), torch.tensor([0.0, 2.0, 4.0]))
        (tensor([[0, 1],
                [1, 2]]), tensor([[0.7500, 0.2500],
                [0.0000, 1.0000]]))
    """
    x = x.clamp(bins[0], bins[-1])
    above = torch.bucketize(x, bins).clamp(1, len(bins) - 1)
    low, high = bins[above - 1], bins[above]
    share = (x - low) / (high - low)
    return torch.stack([above - 1, above], -1), torch.stack([1 - share, share], -1)


def two_hot_loss(logit: Tensor, bins: Tensor, *targets: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of a prediction and the two-hot weights of targets, shape (...) (eq. 8).

    Args:
        logit: Unnormalised log probabilities of the bins, shape (..., N).
        bins: Values of the bins, shape (N,).
        targets: Values to predict, shapes (...), without gradient.
    """
    log_p, places = wide(logit).log_softmax(-1), [two_hot(one.detach(), bins) for one in targets]
    index, weight = (torch.cat(parts, -1) for parts in zip(*places, strict=True))
    return -(weight * log_p.gather(-1, index)).sum(-1)


def two_hot_mean(logit: Tensor, bins: Tensor) -> Tensor:
    """Return the mean value of a prediction, shape (...), exactly 0 where the bins are symmetric and equally likely.

    The probabilities of bins of opposite values are subtracted first, because the sum of large numbers would lose the
    small ones.

    Args:
        logit: Unnormalised log probabilities of the bins, shape (..., N).
        bins: Values of the bins, symmetric around 0, shape (N,).
    """
    probability, middle = wide(logit).softmax(-1), len(bins) // 2
    difference = probability[..., middle + 1 :] - probability[..., :middle].flip(-1)
    return mean_return(difference, bins[middle + 1 :]) + probability[..., middle] * bins[middle]


def with_uniform(logit: Tensor, share: float) -> Tensor:
    """Return probabilities, shape (..., K), of which a share is uniform, so that none is near 0 (section "Robustness").

    Args:
        logit: Unnormalised log probabilities, shape (..., K).
        share: Share of the uniform distribution, in [0, 1].
    """
    return (1 - share) * softmax(wide(logit)) + share / logit.shape[-1]


def softmax(logit: Tensor) -> Tensor:
    """Return the softmax of the last axis, which torch computes slowly on a CPU if that axis is short."""
    if logit.shape[-1] >= SHORT or logit.device.type != "cpu" or torch.onnx.is_in_onnx_export():
        return logit.softmax(-1)
    return logit.movedim(-1, 0).softmax(0).movedim(0, -1)  # a tenth of the time for 8 classes


def draw_index(probability: Tensor, noise: Tensor) -> Tensor:
    """Return the classes that uniform numbers select from categorical distributions, shape (...).

    Args:
        probability: Probabilities, shape (..., K).
        noise: Numbers in [0, 1), shape (...).

    Example:
        >>> draw_index(torch.tensor([0.25, 0.5, 0.25]).expand(3, 3), torch.tensor([0.1, 0.3, 0.9])).tolist()
        [0, 1, 2]
    """
    return (probability.cumsum(-1)[..., :-1] <= noise.unsqueeze(-1)).sum(-1)


def one_hot_of(index: Tensor, probability: Tensor) -> Tensor:
    """Return one-hot vectors, shape (..., K), whose gradient is that of the probabilities (Bengio et al. 2013).

    Args:
        index: Classes, shape (...).
        probability: Probabilities, shape (..., K).
    """
    place = torch.arange(probability.shape[-1], device=index.device)
    one_hot = (index.unsqueeze(-1) == place).to(probability.dtype)
    return one_hot + (probability - probability.detach()) if probability.requires_grad else one_hot


def categorical_kl(probability: Tensor, other: Tensor) -> Tensor:
    """Return KL(probability || other) of G independent categorical variables, shape (...), in nats.

    Args:
        probability: Probabilities above 0, shape (..., G, K).
        other: Probabilities of the other distribution, above 0, shape (..., G, K).
    """
    return (probability * (probability.log() - other.log())).sum((-2, -1))


def balanced_kl(posterior: Tensor, prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor]:
    """Return the dynamics loss and the representation loss, shapes (...) (eq. 3).

    Both are the KL of the posterior and the prior, where it is above ``free_nats``. The first moves the prior only, and
    the second moves the posterior only.

    Args:
        posterior: Probabilities that know the observation, shape (..., G, K).
        prior: Probabilities that do not, shape (..., G, K).
        free_nats: KL below which there is no gradient, >= 0.
    """
    dynamics = categorical_kl(posterior.detach(), prior).clamp(min=free_nats)
    return dynamics, categorical_kl(posterior, prior.detach()).clamp(min=free_nats)


def bootstrapped_returns(
    reward: Tensor, value: Tensor, alive: Tensor, last: Tensor | None, discount_factor: float, lambda_: float
) -> Tensor:
    """Return R_t = r_{t+1} + gamma c_{t+1} ((1 - lambda) v_{t+1} + lambda R_{t+1}) (eq. 7), where R_{L-1} = v_{L-1}.

    Args:
        reward: Reward that comes with each row, shape (L, B); that of the first row is not read.
        value: Value of each row, shape (L, B).
        alive: Probability that the episode continues after a row, c, shape (L, B); 0 at a termination.
        last: Whether a row is the last of its sequence, shape (L, B): there R = v. None if only row L - 1 is.
        discount_factor: gamma, in [0, 1].
        lambda_: Trade-off of bias and variance, in [0, 1].

    Returns:
        Returns of all rows but the last one, shape (L - 1, B).

    Example:
        >>> reward, value = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[9.0], [4.0], [8.0]])
        >>> bootstrapped_returns(reward, value, torch.ones(3, 1), None, 0.5, 0.5).flatten().tolist()
        [3.5, 6.0]
    """
    live = discount_factor * alive[1:]
    mix = lambda_ * (torch.ones_like(live) if last is None else 1 - last[1:].to(live))
    term = reward[1:] + (1 - mix) * live * value[1:]
    found, following = list[Tensor](), value[-1]
    for step in range(len(term) - 1, -1, -1):
        following = term[step] + live[step] * mix[step] * following
        found.append(following)
    return torch.stack(found[::-1])


class SequenceRows(NamedTuple):
    """Which observation is in each row of sequences that also contain the last observations of episodes."""

    step: Tensor
    """Number of the step, shape (L, B)."""
    is_next: Tensor
    """Whether a row has the step's next observation, which is the last of its episode or sequence, shape (L, B)."""
    is_real: Tensor
    """Whether there is an observation, shape (L, B)."""


def episode_rows(ended: Tensor, mask: Tensor) -> SequenceRows:
    """Return the rows of T steps in which episodes may end: T + 1 rows, of which the latest are left out.

    Each step has a row with its observation. A step that ends an episode, and the last real step of a sequence, is
    followed by a row with its next observation.

    Args:
        ended: Whether a step ended its episode, shape (T, B).
        mask: Whether a step is real, shape (T, B); after the first false one of a sequence, all later ones are false.

    Example:
        >>> rows = episode_rows(torch.tensor([[False], [True], [False]]), torch.ones(3, 1, dtype=torch.bool))
        >>> rows.step.flatten().tolist(), rows.is_next.flatten().tolist()
        ([0, 1, 1, 2], [False, False, True, False])
    """
    steps, size = mask.shape
    is_real, nothing = mask.bool(), torch.zeros_like(mask[:1]).bool()
    ends = is_real & (ended.bool() | ~torch.cat([is_real[1:], nothing]))
    place = torch.arange(steps, device=mask.device).unsqueeze(1) + ends.cumsum(0) - ends.long()
    number = 2 * torch.arange(steps, device=mask.device).unsqueeze(1).expand(steps, size)
    source = torch.full((2 * steps + 1, size), -1, device=mask.device)  # the last row takes what is not there
    source = source.scatter(0, torch.where(is_real, place, 2 * steps), number)
    source = source.scatter(0, torch.where(ends, place + 1, 2 * steps), number + 1)[: steps + 1]
    found = source.clamp(min=0)
    return SequenceRows(found // 2, found % 2 == 1, source >= 0)


class ReturnRange(nn.Module):
    """The range of returns: a moving average of their 5th and 95th percentiles (eq. 6 and 7 of the actor).

    Args:
        rate: Step size of the average, in (0, 1].

    Example:
        >>> spread = ReturnRange(rate=0.5)
        >>> spread.update(torch.linspace(-100.0, 100.0, 101))  # percentiles -90 and 90
        >>> spread.scale.item()
        90.0
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @property
    def scale(self) -> Tensor:
        """The difference of both averages, at least 1, a scalar."""
        return (self.high - self.low).clamp(min=SMALLEST_RANGE)

    @torch.no_grad()
    def update(self, returns: Tensor) -> None:
        """Take the percentiles of returns, shape (...), into the averages."""
        finite = wide(returns)[returns.isfinite()]
        if len(finite):
            low, high = torch.quantile(finite, torch.tensor([0.05, 0.95]).to(finite)).to(self.low)
            self.low.lerp_(low, self.rate)
            self.high.lerp_(high, self.rate)
