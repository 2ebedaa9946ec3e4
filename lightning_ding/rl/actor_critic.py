"""Targets and losses of actor-critic methods with continuous actions: DDPG, TD3 and SAC.

Shapes: B batch, E critics, A dimensions of an action. ``discount_t`` (B,) is gamma^n times (1 - terminated), so
termination is handled in one place, where the discount is computed. Time is in the names: ``t`` is after the step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_action(action: Tensor, noise: Tensor) -> Tensor:
    """Return actions plus clipped noise, clamped to [-1, 1] (Fujimoto et al. 2018, eq. 14).

    See https://arxiv.org/abs/1802.09477.

    Args:
        action: The target actor's actions, in [-1, 1], shape (B, A).
        noise: Noise, already clipped, shape (B, A).
    """
    return (action + noise).clamp(-1, 1)


def pessimistic_target(reward: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """Return r + discount * min over critics of Q(s', a') (Fujimoto et al. 2018, eq. 10).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target critics' values of the next observation and the target actor's action, shape (E, B).

    Returns:
        Targets, shape (B,), detached.
    """
    return torch.addcmul(reward, discount_t, q_t.amin(0)).detach()


def soft_target(reward: Tensor, discount_t: Tensor, q_t: Tensor, log_prob_t: Tensor, alpha: Tensor) -> Tensor:
    """Return r + discount * (min over critics of Q(s', a') - alpha log pi(a'|s')) (Haarnoja et al. 2018, eq. 2 and 3).

    https://arxiv.org/abs/1812.05905; section 5 introduces the minimum. The entropy term counts at the true final
    observation of a truncated episode, and not after termination.

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target critics' values of the next observation and a sampled action, shape (E, B).
        log_prob_t: Log density of that action, shape (B,).
        alpha: Temperature, >= 0, a scalar.

    Returns:
        Targets, shape (B,), detached.
    """
    return torch.addcmul(reward, discount_t, q_t.amin(0) - alpha * log_prob_t).detach()


def critic_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the sum over critics of the mean squared error to one target.

    Args:
        q: Values of the actions taken, shape (E, B).
        target: Targets, shape (B,).
        weight: Importance-sampling weights (Schaul et al. 2016, section 3.4, https://arxiv.org/abs/1511.05952),
            shape (B,); None weights all items equally.

    Returns:
        The loss, a scalar.
    """
    squares = (q - target).square()
    return (squares if weight is None else weight * squares).mean(1).sum()


def critic_error(q: Tensor, target: Tensor) -> Tensor:
    """Return abs(target - q) averaged over critics, shape (B,), detached; used as priorities (Schaul et al. 2016)."""
    return (target - q.detach()).abs().mean(0)


def soft_actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of alpha log pi(a|s) - min over critics of Q(s, a) (Haarnoja et al. 2018, eq. 7 and 9).

    Args:
        q: Values of sampled actions, shape (E, B).
        log_prob: Log density of these actions, shape (B,).
        alpha: Temperature, >= 0, a scalar without gradient.
        weight: Importance-sampling weights, shape (B,); None weights all items equally.
    """
    objective = alpha * log_prob - q.amin(0)
    return (objective if weight is None else weight * objective).mean()


def temperature_loss(temperature: Tensor, log_prob: Tensor, target_entropy: float | Tensor) -> Tensor:
    """Return -temperature * mean(log pi + target entropy) (Haarnoja et al. 2018, eq. 18).

    It raises the temperature while the entropy is below the target.

    Args:
        temperature: alpha or, as is common, its logarithm, whose gradient has the same sign; a scalar.
        log_prob: Log density of sampled actions, shape (B,), without gradient.
        target_entropy: Target entropy of the normalised action, in nats, or that of each state, shape (B,).
    """
    target = target_entropy.mean() if isinstance(target_entropy, Tensor) else target_entropy
    return -(temperature * (log_prob.mean() + target))
