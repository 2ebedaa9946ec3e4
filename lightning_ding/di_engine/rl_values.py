"""DI-engine's losses of action values in ``ding.rl_utils``, beyond n-step Q-learning, and scales of values.

They take and return what DI-engine's functions do: a mean loss, weighted where there are weights, and the loss of each
sample. The mathematics is that of :mod:`lightning_ding.rl`. Losses of distributions are in ``rl_distributions``.

Shapes: B batch, N choices, D branches, n steps of a return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.di_engine.rl_utils import (
    SQUARED,
    Criterion,
    Gamma,
    nstep_return,
    nstep_return_data,
    q_nstep_td_data,
    q_nstep_td_error,
    weighted,
)

Transform = Callable[[Tensor], Tensor]


def value_transform(x: Tensor, eps: float = 1e-2) -> Tensor:
    """Return ``sign(x) (sqrt(|x| + 1) - 1) + eps x``."""
    return rl.value_rescale(x, eps)


def value_inv_transform(x: Tensor, eps: float = 1e-2) -> Tensor:
    """Return the inverse of :func:`value_transform`."""
    return rl.value_unscale(x, eps)


def symlog(x: Tensor) -> Tensor:
    """Return ``sign(x) log(1 + |x|)``."""
    return rl.symlog(x)


def inv_symlog(x: Tensor) -> Tensor:
    """Return the inverse of :func:`symlog`."""
    return rl.symexp(x)


# ---------------------------------------------------------------------- action values


class q_1step_td_data(NamedTuple):  # noqa: N801 - DI-engine's name
    """Values and next values (B, N); actions, next actions, rewards, ends and weights (B,)."""

    q: Tensor
    next_q: Tensor
    act: Tensor
    next_act: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class m_q_1step_td_data(NamedTuple):  # noqa: N801
    """Values, and the target network's values before and after the step, (B, N); the others (B,)."""

    q: Tensor
    target_q: Tensor
    next_q: Tensor
    act: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class q_v_1step_td_data(NamedTuple):  # noqa: N801
    """Values of actions (B, N); values of the next observations, actions, rewards, ends and weights (B,)."""

    q: Tensor
    v: Tensor
    act: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class dqfd_nstep_td_data(NamedTuple):  # noqa: N801
    """The fields of :class:`q_nstep_td_data`, those of one step, and 1 for demonstrations (B,)."""

    q: Tensor
    next_n_q: Tensor
    action: Tensor
    next_n_action: Tensor
    reward: Tensor
    done: Tensor
    done_one_step: Tensor
    weight: Tensor | None
    new_n_q_one_step: Tensor
    next_n_action_one_step: Tensor
    is_expert: Tensor


def q_1step_td_error(data: q_1step_td_data, gamma: float, criterion: Criterion = SQUARED) -> Tensor:
    """Return the mean loss of one-step Q-learning."""
    q, next_q, action, next_action, reward, done, weight = data
    of_n = q_nstep_td_data(q, next_q, action, next_action, reward.reshape(1, -1), done, weight)
    return q_nstep_td_error(of_n, gamma, criterion=criterion)[0]


def m_q_1step_td_error(
    data: m_q_1step_td_data, gamma: float, tau: float, alpha: float, criterion: Criterion = SQUARED
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean loss of Munchausen DQN, the loss of each sample, the action gap, and where the bonus is clipped.

    Args:
        data: Values, actions, rewards, ends and weights.
        gamma: Discount factor, in [0, 1].
        tau: Temperature of the entropy, > 0.
        alpha: Share of the Munchausen term, in [0, 1].
        criterion: Loss of each sample, of values and targets.

    Returns:
        The loss; losses (B,); the mean difference of the two largest values of the target network, a scalar; 1 where
        the bound of -1 clips the bonus, and 0 elsewhere, (B,).
    """
    q, target_q, next_q, action, reward, done, weight = data
    unclipped = tau * (target_q.detach() / tau).log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    bonus = rl.munchausen_bonus(target_q, action, tau, -1.0)
    discount = gamma * (1 - done.to(q.dtype))
    target = rl.soft_q_target(reward.reshape(-1) + alpha * bonus, discount, next_q, tau)
    loss, each = weighted(criterion(rl.take_action_value(q, action), target), weight)
    best = target_q.detach().topk(2, 1).values
    return loss, each, (best[:, 0] - best[:, 1]).mean(), (unclipped < -1).float()


def q_v_1step_td_error(data: q_v_1step_td_data, gamma: float, criterion: Criterion = SQUARED) -> tuple[Tensor, Tensor]:
    """Return the mean loss of action values whose target is the value of the next observation (discrete SAC)."""
    q, v, action, reward, done, weight = data
    target = reward + gamma * (1 - done.to(reward.dtype)) * v
    return weighted(criterion(rl.take_action_value(q, action), target.detach()), weight)


def bdq_nstep_td_error(
    data: q_nstep_td_data,
    gamma: Gamma,
    nstep: int = 1,
    cum_reward: bool = False,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of branching Q-learning, the mean over branches, and the loss of each sample, shape (B,).

    Args:
        data: Values (B, D, N) and actions (B, D) of D branches; the others as for :func:`q_nstep_td_error`.
        gamma: Discount factor, in [0, 1].
        nstep: n, >= 1.
        cum_reward: Whether ``reward``, shape (B,), is already the discounted sum.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
        criterion: Loss of each sample, of values and targets.
    """
    q, next_q, action, next_action, reward, done, weight = data
    value = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    next_value = next_q.gather(-1, next_action.unsqueeze(-1)).squeeze(-1)
    total, discount = parts_of(reward, done, gamma, nstep, cum_reward, value_gamma)
    target = total.unsqueeze(-1) + discount.unsqueeze(-1) * next_value
    each = criterion(value, target.detach()).mean(-1)
    return weighted(each, weight)


def q_nstep_td_error_with_rescale(
    data: q_nstep_td_data,
    gamma: Gamma,
    nstep: int = 1,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
    trans_fn: Transform = value_transform,
    inv_trans_fn: Transform = value_inv_transform,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of n-step Q-learning on rescaled values (R2D2), and the loss of each sample.

    Args:
        data: Rescaled values, actions, rewards, ends and weights.
        gamma: Discount factor, in [0, 1].
        nstep: n, >= 1.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
        criterion: Loss of each sample, of values and targets.
        trans_fn: Function that rescales values.
        inv_trans_fn: Its inverse.
    """
    q, next_q, action, next_action, reward, done, weight = data
    next_value = inv_trans_fn(rl.take_action_value(next_q, next_action))
    target = trans_fn(target_of(reward, next_value, done, gamma, nstep, False, value_gamma))
    return weighted(criterion(rl.take_action_value(q, action), target.detach()), weight)


def q_nstep_sql_td_error(
    data: q_nstep_td_data,
    gamma: float,
    alpha: float,
    nstep: int = 1,
    cum_reward: bool = False,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean loss of n-step soft Q-learning, the loss of each sample, and the soft values (B,).

    Args:
        data: Values, actions, rewards, ends and weights; the next actions are not read.
        gamma: Discount factor, in [0, 1].
        alpha: Weight of the entropy, > 0.
        nstep: n, >= 1.
        cum_reward: Whether ``reward``, shape (B,), is already the discounted sum.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
        criterion: Loss of each sample, of values and targets.
    """
    q, next_q, action, _, reward, done, weight = data
    value = rl.soft_value(next_q, alpha)
    target = target_of(reward, value, done, gamma, nstep, cum_reward, value_gamma)
    loss, each = weighted(criterion(rl.take_action_value(q, action), target.detach()), weight)
    return loss, each, value


def dqfd_nstep_td_error(
    data: dqfd_nstep_td_data,
    gamma: float,
    lambda_n_step_td: float,
    lambda_supervised_loss: float,
    margin_function: float,
    lambda_one_step_td: float = 1.0,
    nstep: int = 1,
    cum_reward: bool = False,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
    trans_fn: Transform | None = None,
    inv_trans_fn: Transform | None = None,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the mean loss of DQfD, the sum of both errors of each sample, and the means of its three parts.

    Args:
        data: Values, actions, rewards, ends, weights, and the marks of demonstrations.
        gamma: Discount factor, in [0, 1].
        lambda_n_step_td: Weight of the n-step error.
        lambda_supervised_loss: Weight of the margin loss of demonstrations.
        margin_function: Margin, >= 0.
        lambda_one_step_td: Weight of the one-step error.
        nstep: n, >= 1.
        cum_reward: Whether ``reward``, shape (B,), is already the discounted sum; there is no one-step error then.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
        criterion: Loss of each sample, of values and targets.
        trans_fn: Function that rescales values; None for none.
        inv_trans_fn: Its inverse.

    Returns:
        The loss; absolute sums (B,) of the weighted parts; the means of the n-step, the one-step and the margin part.
    """
    q, next_q, action, next_action, reward, done, done_one, weight, next_q_one, next_action_one, is_expert = data
    rescale: Transform = trans_fn or _unchanged
    unscale: Transform = inv_trans_fn or _unchanged
    value = rl.take_action_value(q, action)

    def error(rewards: Tensor, after: Tensor, chosen: Tensor, ends: Tensor, steps: int, discount: Any) -> Tensor:
        next_value = unscale(rl.take_action_value(after, chosen))
        target = target_of(rewards, next_value, ends, gamma, steps, cum_reward, discount)
        return criterion(value, rescale(target).detach())

    of_n = error(reward, next_q, next_action, done, nstep, value_gamma)
    of_one = torch.zeros_like(of_n)
    if not cum_reward:
        of_one = error(reward[:1], next_q_one, next_action_one, done_one, 1, None)
    margin = is_expert.to(q.dtype) * rl.large_margin(q, action, margin_function)
    parts = (lambda_n_step_td * of_n, lambda_one_step_td * of_one, lambda_supervised_loss * margin)
    loss, each = weighted(parts[0] + parts[1] + parts[2], weight)
    return loss, each.detach().abs(), (of_n.mean(), of_one.mean(), margin.mean())


def dqfd_nstep_td_error_with_rescale(
    data: dqfd_nstep_td_data,
    gamma: float,
    lambda_n_step_td: float,
    lambda_supervised_loss: float,
    lambda_one_step_td: float,
    margin_function: float,
    nstep: int = 1,
    cum_reward: bool = False,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
    trans_fn: Transform = value_transform,
    inv_trans_fn: Transform = value_inv_transform,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the same as :func:`dqfd_nstep_td_error`, for rescaled values (R2D3)."""
    return dqfd_nstep_td_error(
        data,
        gamma,
        lambda_n_step_td,
        lambda_supervised_loss,
        margin_function,
        lambda_one_step_td,
        nstep,
        cum_reward,
        value_gamma,
        criterion,
        trans_fn,
        inv_trans_fn,
    )


def _unchanged(x: Tensor) -> Tensor:
    return x


def target_of(
    reward: Tensor,
    next_value: Tensor,
    done: Tensor,
    gamma: Gamma,
    nstep: int,
    cum_reward: bool = False,
    value_gamma: Tensor | float | None = None,
) -> Tensor:
    """Return rewards plus discounted values, shape (B,); see :func:`q_nstep_td_error` for the arguments."""
    if not cum_reward:
        return nstep_return(nstep_return_data(reward, next_value, done), gamma, nstep, value_gamma)
    require(isinstance(gamma, (int, float)), "gamma", "one number with cum_reward", gamma)
    discount: Any = gamma**nstep if value_gamma is None else value_gamma  # type: ignore[operator]
    target: Tensor = reward + discount * (1 - done.to(reward.dtype)) * next_value
    return target


def parts_of(
    reward: Tensor, done: Tensor, gamma: Gamma, nstep: int, cum_reward: bool, value_gamma: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Return the sums of rewards and the discounts of the values after them, each (B,); see :func:`target_of`."""
    ones = torch.ones_like(done, dtype=reward.dtype)
    total = target_of(reward, 0 * ones, done, gamma, nstep, cum_reward, value_gamma)
    return total, target_of(0 * reward, ones, done, gamma, nstep, cum_reward, value_gamma)
