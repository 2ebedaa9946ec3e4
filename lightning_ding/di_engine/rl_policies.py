"""DI-engine's exploration, samplers and losses of policies in ``ding.rl_utils``, beyond those of PPO.

Shapes: B batch, T time, N choices, A dimensions of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.di_engine.rl_utils import (
    ppo_data,
    ppo_error,
    ppo_info,
    ppo_loss,
    ppo_policy_data,
    ppo_policy_error,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
    weighted,
)

# ---------------------------------------------------------------------- exploration


def get_epsilon_greedy_fn(start: float, end: float, decay: int, type_: str = "exp") -> Callable[[int], float]:
    """Return the function of env steps that gives epsilon.

    Args:
        start: Epsilon at step 0.
        end: Epsilon at the end.
        decay: Steps after which a linear decay ends, and an exponential one is 1/e of the way from the end.
        type_: ``"exp"`` or ``"linear"``.

    Example:
        >>> get_epsilon_greedy_fn(1.0, 0.5, 10, "linear")(5)
        0.75
    """
    require(type_ in ("exp", "linear"), "type_", "'exp' or 'linear'", type_)

    def epsilon(step: int) -> float:
        share = math.exp(-step / decay) if type_ == "exp" else max(0.0, 1 - step / decay)
        return end + (start - end) * share

    return epsilon


class GaussianNoise:
    """Returns independent normal noise for a shape and a device.

    Args:
        mu: Mean.
        sigma: Standard deviation, >= 0.
    """

    def __init__(self, mu: float = 0.0, sigma: float = 1.0) -> None:
        require(sigma >= 0, "sigma", ">= 0", sigma)
        self.mu, self.sigma = mu, sigma

    def __call__(self, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        """Return the noise."""
        return self.mu + self.sigma * torch.randn(shape, device=device)


# ---------------------------------------------------------------------- samplers


def _entry(logit: Any, name: str) -> Any:
    return logit[name] if isinstance(logit, dict) else getattr(logit, name)


class ArgmaxSampler:
    """Returns the most probable actions (B,) of logits (B, N)."""

    def __call__(self, logit: Tensor) -> Tensor:
        """Return the actions."""
        return torch.argmax(logit, -1)


class MultinomialSampler:
    """Returns random actions (B,) of logits (B, N)."""

    def __call__(self, logit: Tensor) -> Tensor:
        """Return the actions."""
        sample: Tensor = torch.distributions.Categorical(logits=logit).sample()
        return sample


class MuSampler:
    """Returns the means ``mu`` (B, A)."""

    def __call__(self, logit: Any) -> Tensor:
        """Return the actions."""
        return _entry(logit, "mu")  # type: ignore[no-any-return]


class ReparameterizationSampler:
    """Returns random actions (B, A) of ``mu`` and ``sigma``, differentiable with respect to them."""

    def __call__(self, logit: Any) -> Tensor:
        """Return the actions."""
        sample: Tensor = torch.distributions.Normal(_entry(logit, "mu"), _entry(logit, "sigma")).rsample()
        return sample


class HybridStochasticSampler:
    """Returns random ``action_type`` and ``action_args``."""

    def __call__(self, logit: Any) -> dict[str, Tensor]:
        """Return the actions."""
        kinds = MultinomialSampler()(_entry(logit, "action_type"))
        return {"action_type": kinds, "action_args": ReparameterizationSampler()(_entry(logit, "action_args"))}


class HybridDeterminsticSampler:
    """Returns the most probable ``action_type``, and the means of ``action_args``."""

    def __call__(self, logit: Any) -> dict[str, Tensor]:
        """Return the actions."""
        kinds = _entry(logit, "action_type").argmax(dim=-1)
        return {"action_type": kinds, "action_args": MuSampler()(_entry(logit, "action_args"))}


# ---------------------------------------------------------------------- losses of policies


class a2c_data(NamedTuple):  # noqa: N801
    """``logit`` (B, N), or ``mu`` and ``sigma`` (B, A); the others (B,), weights may be None."""

    logit: Any
    action: Tensor
    value: Tensor
    adv: Tensor
    return_: Tensor
    weight: Tensor | None


class a2c_loss(NamedTuple):  # noqa: N801
    """Scalars; ``entropy_loss`` is the mean entropy, which a loss subtracts."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor


def a2c_error(data: a2c_data) -> a2c_loss:
    """Return the losses of advantage actor-critic, for discrete and continuous actions."""
    distribution = rl.distribution_of(data.logit)
    weight = torch.ones_like(data.value) if data.weight is None else data.weight
    policy = -(distribution.log_prob(data.action) * data.adv * weight).mean()
    value = ((data.return_ - data.value).square() * weight).mean()
    return a2c_loss(policy, value, (distribution.entropy() * weight).mean())


a2c_error_continuous = a2c_error


class ppg_data(NamedTuple):  # noqa: N801 - DI-engine's name
    """The new and the old ``logit`` (B, N), actions (B,), new values, old values and returns, and weights (B,)."""

    logit_new: Tensor
    logit_old: Tensor
    action: Tensor
    value_new: Tensor
    value_old: Tensor
    return_: Tensor
    weight: Tensor | None


class ppg_joint_loss(NamedTuple):  # noqa: N801
    """Scalars: the loss of the auxiliary values, and KL(pi_old || pi)."""

    auxiliary_loss: Tensor
    behavioral_cloning_loss: Tensor


def ppg_joint_error(data: ppg_data, clip_ratio: float = 0.2, use_value_clip: bool = True) -> ppg_joint_loss:
    """Return the losses of the auxiliary phase of PPG (Cobbe et al. 2021, section 2.1, https://arxiv.org/abs/2009.04416).

    Args:
        data: Parameters of the distributions, values, returns and weights.
        clip_ratio: Largest difference of a value from its old one, > 0.
        use_value_clip: Whether values are clipped.
    """
    values = ppo_value_data(data.value_new, data.value_old, data.return_, data.weight)
    old = data.logit_old.detach().log_softmax(-1)
    divergence = (old.exp() * (old - data.logit_new.log_softmax(-1))).sum(-1)
    return ppg_joint_loss(ppo_value_error(values, clip_ratio, use_value_clip), weighted(divergence, data.weight)[0])


class happo_policy_data(NamedTuple):  # noqa: N801
    """The fields of :class:`ppo_policy_data`, and the product of the ratios of the agents before (B,)."""

    logit_new: Any
    logit_old: Any
    action: Tensor
    adv: Tensor
    weight: Tensor | None
    factor: Tensor


class happo_data(NamedTuple):  # noqa: N801
    """The fields of :class:`happo_policy_data` and :class:`ppo_value_data`."""

    logit_new: Any
    logit_old: Any
    action: Tensor
    value_new: Tensor
    value_old: Tensor
    adv: Tensor
    return_: Tensor
    weight: Tensor | None
    factor: Tensor


happo_policy_loss = ppo_policy_loss
happo_loss = ppo_loss
happo_value_data = ppo_value_data
happo_info = ppo_info
happo_value_error = ppo_value_error


def happo_policy_error(
    data: happo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None
) -> tuple[ppo_policy_loss, ppo_info]:
    """Return the policy loss of one agent: PPO's, with advantages times the factor (Kuba et al. 2022, eq. 11).

    See https://arxiv.org/abs/2109.11251.
    """
    factor = data.factor.reshape(data.adv.shape)
    ours = ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv * factor, data.weight)
    return ppo_policy_error(ours, clip_ratio, dual_clip)


happo_policy_error_continuous = happo_policy_error


def happo_error(
    data: happo_data, clip_ratio: float = 0.2, use_value_clip: bool = True, dual_clip: float | None = None
) -> tuple[ppo_loss, ppo_info]:
    """Return the losses of one agent, and numbers to watch; see :func:`happo_policy_error`."""
    *fields, _ = data._replace(adv=data.adv * data.factor.reshape(data.adv.shape))
    return ppo_error(ppo_data(*fields), clip_ratio, use_value_clip, dual_clip)


happo_error_continuous = happo_error


class vtrace_data(NamedTuple):  # noqa: N801
    """``logit`` (T, B, N), or ``mu`` and ``sigma`` (T, B, A), of both policies; values (T + 1, B); others (T, B)."""

    target_output: Any
    behaviour_output: Any
    action: Tensor
    value: Tensor
    reward: Tensor
    weight: Tensor | None


vtrace_loss = a2c_loss


def compute_importance_weights(
    target_output: Any, behaviour_output: Any, action: Tensor, action_space_type: str = "discrete"
) -> Tensor:
    """Return the ratios (T, B) of the probabilities of actions, without gradient."""
    new, old = rl.distribution_of(target_output), rl.distribution_of(behaviour_output)
    return (new.log_prob(action) - old.log_prob(action)).exp().detach()


def vtrace_error_discrete_action(
    data: vtrace_data,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    rho_clip_ratio: float = 1.0,
    c_clip_ratio: float = 1.0,
    rho_pg_clip_ratio: float = 1.0,
) -> a2c_loss:
    """Return IMPALA's losses of sequences without ends; see :func:`lightning_ding.rl.vtrace`.

    Args:
        data: Parameters of the distributions, actions, values, rewards and weights.
        gamma: Discount factor, in [0, 1].
        lambda_: Trade-off of bias and variance, in [0, 1].
        rho_clip_ratio: Upper bound of the ratio of a step's error, > 0.
        c_clip_ratio: Upper bound of the ratio with which later errors count, > 0.
        rho_pg_clip_ratio: Upper bound of the ratio in the advantage, > 0.
    """
    new, old = rl.distribution_of(data.target_output), rl.distribution_of(data.behaviour_output)
    log_prob = new.log_prob(data.action)
    value, after = data.value[:-1], data.value[1:]
    discount = torch.full_like(data.reward, gamma)
    clips = {"rho_clip_ratio": rho_clip_ratio, "c_clip_ratio": c_clip_ratio, "rho_pg_clip_ratio": rho_pg_clip_ratio}
    ended = torch.zeros_like(data.reward, dtype=torch.bool)
    log_ratio = log_prob.detach() - old.log_prob(data.action).detach()
    found = rl.vtrace(log_ratio, data.reward, value, after, discount, ended, lambda_, **clips)
    policy = weighted(-log_prob * found.advantage, data.weight)[0]
    critic = weighted((value - found.target).square(), data.weight)[0]
    return a2c_loss(policy, critic, weighted(new.entropy(), data.weight)[0])


vtrace_error_continuous_action = vtrace_error_discrete_action


class coma_data(NamedTuple):  # noqa: N801
    """``logit`` and both values (T, B, G, N) of G agents, actions and weights (T, B, G), rewards (T, B)."""

    logit: Tensor
    action: Tensor
    q_value: Tensor
    target_q_value: Tensor
    reward: Tensor
    weight: Tensor | None


class coma_loss(NamedTuple):  # noqa: N801
    """Scalars; ``entropy_loss`` is the mean entropy, which a loss subtracts."""

    policy_loss: Tensor
    q_value_loss: Tensor
    entropy_loss: Tensor


def coma_error(data: coma_data, gamma: float, lambda_: float) -> coma_loss:
    """Return the losses of COMA (Foerster et al. 2018, eq. 3 and 4, https://arxiv.org/abs/1705.08926).

    The baseline of an agent is the mean value over its own actions. Values are learned towards lambda-returns, for all
    steps but the last, which only bootstraps.

    Args:
        data: Parameters of the distributions, actions, values, rewards and weights; rewards (T, B).
        gamma: Discount factor, in [0, 1].
        lambda_: Trade-off of bias and variance, in [0, 1].
    """
    logit, action, q_value, target_q, reward, weight = data
    chosen, target = (q.gather(-1, action.unsqueeze(-1)).squeeze(-1) for q in (q_value, target_q))
    log_p = logit.log_softmax(-1)
    advantage = (chosen - (log_p.exp() * q_value).sum(-1)).detach()
    policy = weighted(-log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1) * advantage, weight)[0]
    returns = target.clone()
    for step in reversed(range(len(target) - 1)):
        after = lambda_ * returns[step + 1] + (1 - lambda_) * target[step + 1]
        returns[step] = reward[step].unsqueeze(-1) + gamma * after
    error = (returns[:-1].detach() - chosen[:-1]).square()
    critic = weighted(error, None if weight is None else weight[:-1])[0]
    entropy = weighted(-(log_p.exp() * log_p).sum(-1), weight)[0]
    return coma_loss(policy, critic, entropy)
