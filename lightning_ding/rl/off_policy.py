"""V-trace and Retrace, values of a policy from unrolls of an older one, and the gradient of ACER.

Papers: V-trace: Espeholt et al. 2018, section 4.1 (https://arxiv.org/abs/1802.01561); Retrace: Munos et al. 2016
(https://arxiv.org/abs/1606.02647); ACER: Wang et al. 2017 (https://arxiv.org/abs/1611.01224).

Shapes: T steps of an unroll, B unrolls, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_ding.rl.returns import sum_backwards


class VTrace(NamedTuple):
    """The results of :func:`vtrace`, both without gradient.

    Attributes:
        target: Targets of the critic, ``v_s`` in the paper, shape (T, B).
        advantage: Weights of the log probabilities in the policy gradient, shape (T, B).
    """

    target: Tensor
    advantage: Tensor


@torch.no_grad()
def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    lambda_: float = 1.0,
    rho_clip_ratio: float = 1.0,
    c_clip_ratio: float = 1.0,
    rho_pg_clip_ratio: float = 1.0,
) -> VTrace:
    """Return the V-trace targets (eq. 1) and the advantages of the policy gradient (section 4.2).

    With the ratio rho = pi(a|s) / mu(a|s), a step has the error delta = min(rho, rho_clip_ratio) (r + discount V(s') -
    V(s)). The target is V(s) plus the error and, within the sequence, discount lambda min(rho, c_clip_ratio) times the
    difference of target and value at the next step. The advantage is min(rho, rho_pg_clip_ratio) (r + discount v(s') -
    V(s)), where v(s') is the target of the next step, or V(s') at the end of a sequence. No product of ratios and no
    target crosses the end of a sequence.

    Args:
        log_ratio: log pi(a|s) - log mu(a|s) of the actions taken by the older policy mu, shape (T, B).
        reward: Rewards, shape (T, B).
        value: Values of the observations acted on, shape (T, B).
        next_value: Values of the true next observations (at the end of an episode the final one, not the one after the
            reset), shape (T, B).
        discount: gamma * (1 - terminated), shape (T, B).
        ended: Whether this is the last step of a sequence (terminated, truncated or the end of the data), shape (T, B);
            the last row counts as ended.
        lambda_: Trade-off of bias and variance, in [0, 1]; 1 is the paper's, 0 gives one-step targets.
        rho_clip_ratio: Upper bound of the ratio of a step's error, > 0; it determines whose values are learned.
        c_clip_ratio: Upper bound of the ratio with which later errors count, > 0.
        rho_pg_clip_ratio: Upper bound of the ratio in the advantage, > 0.

    Raises:
        ValueError: If a bound or ``lambda_`` is out of its range.

    Example:
        >>> step = torch.ones(1, 1)
        >>> vtrace(step.log(), step, 2 * step, 4 * step, 0.5 * step, step.bool()).advantage.item()  # 1 + 0.5 * 4 - 2
        1.0
    """
    bounds = {"rho_clip_ratio": rho_clip_ratio, "c_clip_ratio": c_clip_ratio, "rho_pg_clip_ratio": rho_pg_clip_ratio}
    for name, bound in bounds.items():
        if bound <= 0:
            raise ValueError(f"{name} must be > 0, got {bound!r}")
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must be in [0, 1], got {lambda_!r}")
    ratio, continues = log_ratio.exp(), ~ended.bool()
    delta = ratio.clamp(max=rho_clip_ratio) * (reward + discount * next_value - value)
    decay = continues * discount * ratio.clamp(max=c_clip_ratio) * lambda_
    target = value + sum_backwards(delta, decay)
    continues = torch.cat([continues[:-1], torch.zeros_like(continues[-1:])])
    next_target = torch.where(continues, torch.cat([target[1:], next_value[-1:]]), next_value)
    advantage = ratio.clamp(max=rho_pg_clip_ratio) * (reward + discount * next_target - value)
    return VTrace(target, advantage)


@torch.no_grad()
def retrace(
    log_ratio: Tensor,
    reward: Tensor,
    q: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
) -> Tensor:
    """Return the Retrace targets of the values of the actions taken (Wang et al. 2017, section 3.1).

    The target is r + discount (V(s') + min(1, rho') (target' - Q(s', a'))), where primes mean the next step and rho =
    pi(a|s) / mu(a|s); at the end of a sequence it is r + discount V(s').

    Args:
        log_ratio: log pi(a|s) - log mu(a|s) of the actions taken by the older policy mu, shape (T, B).
        reward: Rewards, shape (T, B).
        q: Values of the actions taken, shape (T, B).
        value: Values of the observations acted on, the mean of Q under pi, shape (T, B).
        next_value: Values of the true next observations, shape (T, B).
        discount: gamma * (1 - terminated), shape (T, B).
        ended: Whether this is the last step of a sequence, shape (T, B); the last row counts as ended.

    Returns:
        Targets, shape (T, B), without gradient.

    Example:
        >>> step = torch.ones(1, 1)
        >>> retrace(step.log(), step, step, step, 4 * step, 0.5 * step, step.bool()).item()  # 1 + 0.5 * 4
        3.0
    """
    error = reward + discount * next_value - q
    trace = log_ratio.exp().clamp(max=1.0)
    following = torch.cat([trace[1:], torch.zeros_like(trace[:1])])
    return q + sum_backwards(error, ~ended.bool() * discount * following)


@torch.no_grad()
def acer_gradient(
    log_p: Tensor, log_mu: Tensor, action: Tensor, q: Tensor, target: Tensor, c_clip_ratio: float = 10.0
) -> Tensor:
    """Return the gradient of ACER's objective by the log probabilities of all actions (section 3.2).

    For the action taken it is min(c, rho) (target - V). The correction of what this leaves out adds max(0, 1 - c / rho)
    pi (Q - V) for every action. V is the mean of Q under pi.

    Args:
        log_p: Log probabilities by the present policy, shape (..., A).
        log_mu: Log probabilities by the policy that acted, shape (..., A).
        action: Actions taken, shape (...).
        q: Values of all actions, shape (..., A).
        target: Retrace targets of the actions taken, shape (...).
        c_clip_ratio: Upper bound c of the ratio, > 0.
    """
    p, ratio = log_p.exp(), (log_p - log_mu).exp()
    value = (p * q).sum(-1, keepdim=True)
    correction = (1 - c_clip_ratio / ratio.clamp(min=1e-8)).clamp(min=0) * p * (q - value)
    index = action.unsqueeze(-1)
    of_taken = ratio.gather(-1, index).clamp(max=c_clip_ratio) * (target.unsqueeze(-1) - value)
    return correction.scatter_add(-1, index, of_taken)


@torch.no_grad()
def within_trust_region(gradient: Tensor, average_log_p: Tensor, largest: float) -> Tensor:
    """Return the gradient that is closest to ``gradient`` and does not leave the average policy faster than allowed.

    Section 3.3, with the log probabilities as statistics of the distribution: k, the gradient of KL(average || policy)
    by them, is minus the average probabilities, and the solution is g - max(0, (k g - largest) / |k|^2) k.

    Args:
        gradient: Gradient g of an objective by the log probabilities, shape (..., A).
        average_log_p: Log probabilities by the average policy, shape (..., A).
        largest: Largest rate k g at which the divergence may grow, >= 0.
    """
    k = -average_log_p.exp()
    excess = ((k * gradient).sum(-1, keepdim=True) - largest) / k.square().sum(-1, keepdim=True)
    return gradient - excess.clamp(min=0) * k
