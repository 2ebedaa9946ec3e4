"""DI-engine's losses of distributions of returns in ``ding.rl_utils``: C51, QR-DQN, IQN and FQF.

They take and return what DI-engine's functions do. Where this differs: ``kappa`` of FQF is the error up to which the
loss is quadratic, as that of IQN.

Shapes: B batch, N choices, M quantiles or atoms, n steps of a return.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.di_engine.rl_utils import weighted
from lightning_ding.di_engine.rl_values import parts_of


class dist_1step_td_data(NamedTuple):  # noqa: N801
    """Probabilities (B, N, M) and next ones; actions, next actions, rewards, ends and weights (B,)."""

    dist: Tensor
    next_dist: Tensor
    act: Tensor
    next_act: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class dist_nstep_td_data(NamedTuple):  # noqa: N801
    """The same with the probabilities after n steps, and rewards (n, B)."""

    dist: Tensor
    next_n_dist: Tensor
    act: Tensor
    next_n_act: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class qrdqn_nstep_td_data(NamedTuple):  # noqa: N801
    """Quantiles (B, N, M) and those after n steps; rewards (n, B); levels ``tau``, (B, M) or with an axis of 1."""

    q: Tensor
    next_n_q: Tensor
    action: Tensor
    next_n_action: Tensor
    reward: Tensor
    done: Tensor
    tau: Tensor
    weight: Tensor | None


class iqn_nstep_td_data(NamedTuple):  # noqa: N801
    """Quantiles (M, B, N) and (M', B, N) after n steps; rewards (n, B); levels (M, B, 1) of the first."""

    q: Tensor
    next_n_q: Tensor
    action: Tensor
    next_n_action: Tensor
    reward: Tensor
    done: Tensor
    replay_quantiles: Tensor
    weight: Tensor | None


class fqf_nstep_td_data(NamedTuple):  # noqa: N801
    """Quantiles (B, M, N) and those after n steps; rewards (n, B); levels (B, M)."""

    q: Tensor
    next_n_q: Tensor
    action: Tensor
    next_n_action: Tensor
    reward: Tensor
    done: Tensor
    quantiles_hats: Tensor
    weight: Tensor | None


def dist_1step_td_error(data: dist_1step_td_data, gamma: float, v_min: float, v_max: float, n_atom: int) -> Tensor:
    """Return the mean loss of one-step C51."""
    of_n = dist_nstep_td_data(*data._replace(reward=data.reward.reshape(1, -1)))
    return dist_nstep_td_error(of_n, gamma, v_min, v_max, n_atom)[0]


def dist_nstep_td_error(
    data: dist_nstep_td_data,
    gamma: float,
    v_min: float,
    v_max: float,
    n_atom: int,
    nstep: int = 1,
    value_gamma: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of C51 with the projected distribution, and that of each sample, shape (B,).

    Args:
        data: Probabilities, actions, rewards, ends and weights.
        gamma: Discount factor, in [0, 1].
        v_min: Smallest value of the support.
        v_max: Largest value of the support.
        n_atom: Number of atoms M, >= 2.
        nstep: n, >= 1.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
    """
    dist, next_dist, action, next_action, reward, done, weight = data
    total, discount = parts_of(reward, done, gamma, nstep, False, value_gamma)
    support = torch.linspace(v_min, v_max, n_atom, device=dist.device, dtype=dist.dtype)
    moved = rl.moved_support(total, discount, support)
    target = rl.categorical_projection(moved, rl.take_action_distribution(next_dist, next_action), support)
    log_p = rl.take_action_distribution(dist, action).log()
    return weighted(rl.cross_entropy(log_p, target), weight)


def qrdqn_nstep_td_error(
    data: qrdqn_nstep_td_data, gamma: float, nstep: int = 1, value_gamma: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean quantile Huber loss of QR-DQN, and that of each sample; see :func:`iqn_nstep_td_error`."""
    chosen = rl.take_action_distribution(data.q, data.action)
    after = rl.take_action_distribution(data.next_n_q, data.next_n_action)
    tau = data.tau.reshape(len(data.tau), -1) if data.tau.ndim > 1 else data.tau
    return _quantile_error(chosen, after, tau, data, gamma, nstep, 1.0, value_gamma)


def iqn_nstep_td_error(
    data: iqn_nstep_td_data, gamma: float, nstep: int = 1, kappa: float = 1.0, value_gamma: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean quantile Huber loss of IQN, and that of each sample, shape (B,).

    Args:
        data: Quantiles, actions, rewards, ends, levels and weights.
        gamma: Discount factor, in [0, 1].
        nstep: n, >= 1.
        kappa: Error up to which the loss is quadratic, > 0; the loss is divided by it.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
    """
    chosen = rl.take_action_distribution(data.q.permute(1, 2, 0), data.action)
    after = rl.take_action_distribution(data.next_n_q.permute(1, 2, 0), data.next_n_action)
    tau = data.replay_quantiles.reshape(data.q.shape[:2]).T
    return _quantile_error(chosen, after, tau, data, gamma, nstep, kappa, value_gamma)


def fqf_nstep_td_error(
    data: fqf_nstep_td_data, gamma: float, nstep: int = 1, kappa: float = 1.0, value_gamma: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean quantile Huber loss of FQF, and that of each sample; see :func:`iqn_nstep_td_error`."""
    chosen = evaluate_quantile_at_action(data.q, data.action).squeeze(-1)
    after = evaluate_quantile_at_action(data.next_n_q, data.next_n_action).squeeze(-1)
    return _quantile_error(chosen, after, data.quantiles_hats, data, gamma, nstep, kappa, value_gamma)


def _quantile_error(
    chosen: Tensor, after: Tensor, tau: Tensor, data: Any, gamma: float, nstep: int, kappa: float, value_gamma: Any
) -> tuple[Tensor, Tensor]:
    total, discount = parts_of(data.reward, data.done, gamma, nstep, False, value_gamma)
    each = rl.quantile_huber(chosen, rl.quantile_target(total, discount, after), tau, kappa) / kappa
    return weighted(each, data.weight)


def evaluate_quantile_at_action(q_s: Tensor, actions: Tensor) -> Tensor:
    """Return the quantiles (B, M, 1) of actions (B,), of those of all actions (B, M, N)."""
    return q_s.gather(-1, actions.reshape(-1, 1, 1).expand(-1, q_s.shape[1], 1))


def fqf_calculate_fraction_loss(q_tau_i: Tensor, q_value: Tensor, quantiles: Tensor, actions: Tensor) -> Tensor:
    """Return the mean loss of FQF's levels, whose gradient is that of proposition 1.

    Args:
        q_tau_i: Values at the inner levels, shape (B, M - 1, N).
        q_value: Values at the middles, shape (B, M, N).
        quantiles: Levels from 0 to 1, shape (B, M + 1).
        actions: Actions, shape (B,).
    """
    ends, middles = (evaluate_quantile_at_action(one, actions).squeeze(-1) for one in (q_tau_i, q_value))
    return rl.fraction_loss(quantiles, ends, middles).mean()
