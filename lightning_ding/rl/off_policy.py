"""V-trace: values and advantages of a policy from unrolls of an older one.

Paper: Espeholt et al. 2018, section 4.1 (https://arxiv.org/abs/1802.01561).

Shapes: T steps of an unroll, B unrolls.
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
