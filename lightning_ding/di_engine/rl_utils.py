"""DI-engine's functions of ``ding.rl_utils`` for policy classes in its form, with its names and arguments.

They take and return what DI-engine's functions do. Where this differs: the discount of an n-step return that is cut
short has the power of its steps, ``dual_clip`` bounds the loss where the advantage is negative also for continuous
actions, and nothing is changed in place but the transitions of a list.

Shapes: B batch, T time, N choices, A dimensions of a continuous action, n steps of a return, G agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.utils.foreign import attach

_VALUES = (
    *("bdq_nstep_td_error", "dqfd_nstep_td_data", "dqfd_nstep_td_error", "dqfd_nstep_td_error_with_rescale"),
    *("inv_symlog", "m_q_1step_td_data", "m_q_1step_td_error", "q_1step_td_data", "q_1step_td_error"),
    *("q_nstep_sql_td_error", "q_nstep_td_error_with_rescale", "q_v_1step_td_data", "q_v_1step_td_error"),
    *("symlog", "value_inv_transform", "value_transform"),
)
_DISTRIBUTIONS = (
    *("dist_1step_td_data", "dist_1step_td_error", "dist_nstep_td_data", "dist_nstep_td_error"),
    *("evaluate_quantile_at_action", "fqf_calculate_fraction_loss", "fqf_nstep_td_data", "fqf_nstep_td_error"),
    *("iqn_nstep_td_data", "iqn_nstep_td_error", "qrdqn_nstep_td_data", "qrdqn_nstep_td_error"),
)
_POLICIES = (
    *("ArgmaxSampler", "GaussianNoise", "HybridDeterminsticSampler", "HybridStochasticSampler", "MuSampler"),
    *("MultinomialSampler", "ReparameterizationSampler", "a2c_data", "a2c_error"),
    *("a2c_error_continuous", "a2c_loss", "coma_data", "coma_error", "coma_loss", "compute_importance_weights"),
    *("get_epsilon_greedy_fn", "happo_data", "happo_error", "happo_error_continuous"),
    *("happo_info", "happo_loss", "happo_policy_data", "happo_policy_error", "happo_policy_error_continuous"),
    *("happo_policy_loss", "happo_value_data", "happo_value_error", "ppg_data", "ppg_joint_error"),
    *("ppg_joint_loss", "vtrace_data", "vtrace_error_continuous_action", "vtrace_error_discrete_action"),
    "vtrace_loss",
)
_HOMES = {
    **dict.fromkeys(_VALUES, "di_engine.rl_values"),
    **dict.fromkeys(_DISTRIBUTIONS, "di_engine.rl_distributions"),
    **dict.fromkeys(_POLICIES, "di_engine.rl_policies"),
}
__all__ = [
    *_HOMES,
    *("gae", "gae_data", "get_gae", "get_gae_with_default_last_value", "get_nstep_return_data"),
    *("get_train_sample", "nstep_return", "nstep_return_data", "ppo_data", "ppo_data_continuous", "ppo_error"),
    *("ppo_error_continuous", "ppo_info", "ppo_loss", "ppo_policy_data", "ppo_policy_error"),
    *("ppo_policy_data_continuous", "ppo_policy_error_continuous", "ppo_policy_loss", "ppo_value_data"),
    *("ppo_value_error", "q_nstep_td_data", "q_nstep_td_error", "v_1step_td_data", "v_1step_td_error"),
    *("v_nstep_td_data", "v_nstep_td_error"),
]
_others = attach(__name__, _HOMES)[0]
Criterion = Callable[[Tensor, Tensor], Tensor]
SQUARED: Criterion = nn.MSELoss(reduction="none")
Transition = dict[str, Any]
AFTER = ("next_obs", "done")
"""Entries of a transition that belong to its end."""


def __getattr__(name: str) -> Any:
    return _others(name)


# ---------------------------------------------------------------------- temporal differences


class nstep_return_data(NamedTuple):  # noqa: N801 - DI-engine's name
    """Rewards (n, B), values after them (B,) and ends (B,)."""

    reward: Tensor
    next_value: Tensor
    done: Tensor


class q_nstep_td_data(NamedTuple):  # noqa: N801
    """Values (B, N), values after n steps (B, N), actions (B,), next actions (B,), rewards (n, B), ends and weights."""

    q: Tensor
    next_n_q: Tensor
    action: Tensor
    next_n_action: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None


class v_1step_td_data(NamedTuple):  # noqa: N801
    """Values, next values, rewards, ends and weights, each (B,); ends and weights may be None."""

    v: Tensor
    next_v: Tensor
    reward: Tensor
    done: Tensor | None
    weight: Tensor | None


class v_nstep_td_data(NamedTuple):  # noqa: N801
    """Values (B,), values after n steps (B,), rewards (n, B), ends (B,), weights and discounts (B,) or None."""

    v: Tensor
    next_n_v: Tensor
    reward: Tensor
    done: Tensor
    weight: Tensor | None
    value_gamma: Tensor | None


Gamma = float | Sequence[Tensor | float]
"""A discount factor in [0, 1], or a list of B of them, one for each sample."""


def nstep_return(
    data: nstep_return_data, gamma: Gamma, nstep: int, value_gamma: Tensor | float | None = None
) -> Tensor:
    """Return the discounted sum of n rewards, plus the discounted value after them, shape (B,).

    Args:
        data: Rewards, values and ends.
        gamma: Discount factor, in [0, 1], or a list of B of them.
        nstep: n, >= 1.
        value_gamma: Discount of the value, shape (B,); None means gamma^n, which a list of gamma always does.

    Raises:
        ValueError: If there are not n rewards, or a list has not B discount factors.
    """
    reward, next_value, done = data
    discount_factor: Any = gamma
    if isinstance(gamma, Sequence):
        require(len(gamma) == len(next_value), "gamma", f"one number, or a list of {len(next_value)}", len(gamma))
        discount_factor, value_gamma = torch.stack([torch.as_tensor(one).to(reward) for one in gamma]), None
    require(len(reward) == nstep, "reward", f"rewards of nstep = {nstep} steps, shape (nstep, B)", tuple(reward.shape))
    total, _ = rl.n_step_return(reward, torch.ones_like(reward, dtype=torch.bool), discount_factor)
    discount = discount_factor**nstep if value_gamma is None else value_gamma
    return total + discount * (1 - done.to(total.dtype)) * next_value


def q_nstep_td_error(
    data: q_nstep_td_data,
    gamma: Gamma,
    nstep: int = 1,
    cum_reward: bool = False,
    value_gamma: Tensor | None = None,
    criterion: Criterion = SQUARED,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean loss of n-step Q-learning, and the loss of each sample, shape (B,).

    Args:
        data: Values, actions, rewards, ends and weights.
        gamma: Discount factor, in [0, 1], or a list of B of them, without ``cum_reward``.
        nstep: n, >= 1.
        cum_reward: Whether ``reward``, shape (B,), is already the discounted sum.
        value_gamma: Discount of the value after the rewards, shape (B,); None means gamma^n.
        criterion: Loss of each sample, of values and targets.

    Raises:
        ValueError: If there are not n rewards, or a list of discount factors is of no use.
    """
    q, next_n_q, action, next_n_action, reward, done, weight = data
    value = rl.take_action_value(q, action)
    next_value = rl.take_action_value(next_n_q, next_n_action)
    if cum_reward:
        require(isinstance(gamma, (int, float)), "gamma", "one number with cum_reward", gamma)
        discount = cast(float, gamma) ** nstep if value_gamma is None else value_gamma
        target = reward + discount * next_value * (1 - done.to(reward.dtype))
    else:
        target = nstep_return(nstep_return_data(reward, next_value, done), gamma, nstep, value_gamma)
    return weighted(criterion(value, target.detach()), weight)


def v_1step_td_error(data: v_1step_td_data, gamma: float, criterion: Criterion = SQUARED) -> tuple[Tensor, Tensor]:
    """Return the weighted mean loss of values after one step, and the loss of each sample, shape (B,).

    Args:
        data: Values, rewards, ends and weights.
        gamma: Discount factor, in [0, 1].
        criterion: Loss of each sample, of values and targets.
    """
    v, next_v, reward, done, weight = data
    alive = torch.ones_like(reward) if done is None else 1 - done.to(reward.dtype)
    return weighted(criterion(v, (reward + gamma * alive * next_v).detach()), weight)


def v_nstep_td_error(
    data: v_nstep_td_data, gamma: float, nstep: int = 1, criterion: Criterion = SQUARED
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean loss of values after n steps, and the loss of each sample, shape (B,).

    Args:
        data: Values, rewards, ends, weights and discounts.
        gamma: Discount factor, in [0, 1].
        nstep: n, >= 1.
        criterion: Loss of each sample, of values and targets.

    Raises:
        ValueError: If there are not n rewards.
    """
    v, next_n_v, reward, done, weight, value_gamma = data
    target = nstep_return(nstep_return_data(reward, next_n_v, done), gamma, nstep, value_gamma)
    return weighted(criterion(v, target.detach()), weight)


def weighted(loss: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of the losses of samples, shape (B,), and these losses."""
    return (loss if weight is None else loss * weight).mean(), loss


# ---------------------------------------------------------------------- policy gradients


class ppo_policy_data(NamedTuple):  # noqa: N801
    """The new and the old ``logit`` (B, N), or ``mu`` and ``sigma`` (B, A); the others (B,), weights may be None."""

    logit_new: Any
    logit_old: Any
    action: Tensor
    adv: Tensor
    weight: Tensor | None
    logit_pretrained: None = None


class ppo_value_data(NamedTuple):  # noqa: N801
    """New values, old values, returns and weights, each (B,); weights may be None."""

    value_new: Tensor
    value_old: Tensor
    return_: Tensor
    weight: Tensor | None


class ppo_data(NamedTuple):  # noqa: N801
    """The fields of :class:`ppo_policy_data` and :class:`ppo_value_data`."""

    logit_new: Any
    logit_old: Any
    action: Tensor
    value_new: Tensor
    value_old: Tensor
    adv: Tensor
    return_: Tensor
    weight: Tensor | None
    logit_pretrained: None = None


class ppo_data_continuous(NamedTuple):  # noqa: N801
    """The same as :class:`ppo_data`, with ``mu`` and ``sigma``, shape (B, A)."""

    mu_sigma_new: Mapping[str, Tensor]
    mu_sigma_old: Mapping[str, Tensor]
    action: Tensor
    value_new: Tensor
    value_old: Tensor
    adv: Tensor
    return_: Tensor
    weight: Tensor | None
    logit_pretrained: None = None


class ppo_policy_loss(NamedTuple):  # noqa: N801
    """Scalars; ``entropy_loss`` is the mean entropy, which a loss subtracts."""

    policy_loss: Tensor
    entropy_loss: Tensor


class ppo_loss(NamedTuple):  # noqa: N801
    """Scalars; ``entropy_loss`` is the mean entropy, which a loss subtracts."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor


class ppo_info(NamedTuple):  # noqa: N801
    """Mean of log pi_old - log pi, and the share of ratios beyond the clipping distance."""

    approx_kl: float
    clipfrac: float


def ppo_policy_error(
    data: ppo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None
) -> tuple[ppo_policy_loss, ppo_info]:
    """Return PPO's policy loss and entropy, and numbers to watch, for discrete and continuous actions.

    Args:
        data: Parameters of the distributions, actions, advantages and weights.
        clip_ratio: Distance from 1 beyond which the ratio is clipped, > 0.
        dual_clip: Upper bound, > 1, on the ratio where the advantage is negative; None for no bound.

    Raises:
        ValueError: If an argument is out of its range.
    """
    require(clip_ratio > 0, "clip_ratio", "> 0", clip_ratio)
    require(dual_clip is None or dual_clip > 1, "dual_clip", "> 1 or None", dual_clip)
    given = data.logit_pretrained
    require(given is None, "logit_pretrained", "None: there is no third policy here", given)
    new, old = rl.distribution_of(data.logit_new), rl.distribution_of(data.logit_old)
    adv, weight = data.adv, torch.ones_like(data.adv) if data.weight is None else data.weight
    log_ratio = new.log_prob(data.action) - old.log_prob(data.action)
    ratio = log_ratio.exp()
    objective = torch.minimum(ratio * adv, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * adv)
    if dual_clip is not None:
        objective = torch.where(adv < 0, torch.maximum(objective, dual_clip * adv), objective)
    clipped = ((ratio.detach() - 1).abs() > clip_ratio).float().mean().item()
    loss = ppo_policy_loss(-(objective * weight).mean(), (new.entropy() * weight).mean())
    return loss, ppo_info(-log_ratio.detach().mean().item(), clipped)


def ppo_value_error(data: ppo_value_data, clip_ratio: float = 0.2, use_value_clip: bool = True) -> Tensor:
    """Return half the weighted mean squared error of values, the larger one of the value and the clipped value.

    Args:
        data: Values, returns and weights.
        clip_ratio: Largest difference of a value from its old one, > 0.
        use_value_clip: Whether values are clipped.
    """
    value, old, target, weight = data
    error = (target - value).square()
    if use_value_clip:
        error = torch.maximum(error, (target - old - (value - old).clamp(-clip_ratio, clip_ratio)).square())
    return 0.5 * weighted(error, weight)[0]


def ppo_error(
    data: ppo_data | ppo_data_continuous,
    clip_ratio: float = 0.2,
    use_value_clip: bool = True,
    dual_clip: float | None = None,
) -> tuple[ppo_loss, ppo_info]:
    """Return the losses of PPO, and numbers to watch; see :func:`ppo_policy_error` and :func:`ppo_value_error`."""
    new, old, action, value_new, value_old, adv, return_, weight, pretrained = data
    policy, info = ppo_policy_error(ppo_policy_data(new, old, action, adv, weight, pretrained), clip_ratio, dual_clip)
    value = ppo_value_error(ppo_value_data(value_new, value_old, return_, weight), clip_ratio, use_value_clip)
    return ppo_loss(policy.policy_loss, value, policy.entropy_loss), info


ppo_error_continuous = ppo_error
ppo_policy_error_continuous = ppo_policy_error
ppo_policy_data_continuous = ppo_policy_data


# ---------------------------------------------------------------------- lists of transitions


class gae_data(NamedTuple):  # noqa: N801
    """Values and next values (T, B) or (T, B, G), rewards (T, B); ends, and ends of the sequences, (T, B) or None."""

    value: Tensor
    next_value: Tensor
    reward: Tensor
    done: Tensor | None
    traj_flag: Tensor | None


def gae(data: gae_data, gamma: float = 0.99, lambda_: float = 0.97) -> Tensor:
    """Return generalised advantage estimates, in the shape of the values; see :func:`lightning_ding.rl.gae`.

    Args:
        data: Values, rewards and ends; without ``traj_flag``, a sequence ends where ``done`` is true.
        gamma: Discount factor, in [0, 1].
        lambda_: Trade-off of bias and variance, in [0, 1].
    """
    value, next_value, reward, done, traj_flag = data
    done = torch.zeros_like(reward) if done is None else done
    ended = done if traj_flag is None else traj_flag
    if value.ndim == reward.ndim + 1:  # agents share their rewards and ends
        reward, done, ended = (one.unsqueeze(-1).expand_as(value) for one in (reward, done, ended))
    return rl.gae(reward, value, next_value, done, ended, gamma, lambda_)


def get_gae(
    data: list[Transition], last_value: Tensor, gamma: float, gae_lambda: float, cuda: bool = False
) -> list[Transition]:
    """Return the transitions of a sequence with ``adv``, their generalised advantage estimates.

    Args:
        data: Transitions in chronological order with ``value`` and ``reward``, which are changed; none give none. The
            values of G agents, shape (G,), may share a reward.
        last_value: Value after the last one.
        gamma: Discount factor, in [0, 1].
        gae_lambda: Trade-off of bias and variance, in [0, 1].
        cuda: Without effect: the numbers are computed where they are.
    """
    if not data:  # what is left of a single step whose sequence did not end
        return data
    value = torch.stack([one["value"] for one in data])
    next_value = torch.cat([value[1:], last_value.reshape(value[:1].shape)])
    reward = torch.stack([one["reward"] for one in data])
    is_shared = reward.numel() == len(value) < value.numel()
    reward = reward.reshape(len(value), *[1] * (value.ndim - 1)).expand_as(value) if is_shared else reward
    reward = reward.reshape(value.shape)
    for one, adv in zip(data, gae(gae_data(value, next_value, reward, None, None), gamma, gae_lambda), strict=True):
        one["adv"] = adv
    return data


def get_gae_with_default_last_value(
    data: list[Transition], done: bool, gamma: float, gae_lambda: float, cuda: bool = False
) -> list[Transition]:
    """Return the transitions with ``adv``; without an end, the last one is removed and its value counts after the rest.

    Args:
        data: Transitions in chronological order with ``value`` and ``reward``, which are changed.
        done: Whether the sequence ended; nothing counts after it then.
        gamma: Discount factor, in [0, 1].
        gae_lambda: Trade-off of bias and variance, in [0, 1].
        cuda: Without effect: the numbers are computed where they are.
    """
    last_value = torch.zeros_like(data[-1]["value"]) if done else data.pop()["value"]
    return get_gae(data, last_value, gamma, gae_lambda, cuda)


def get_nstep_return_data(
    data: MutableSequence[Transition],
    nstep: int,
    cum_reward: bool = False,
    correct_terminate_gamma: bool = True,
    gamma: float = 0.99,
) -> MutableSequence[Transition]:
    """Return the transitions of a sequence with the rewards of n steps, and the observation and the end after them.

    Args:
        data: Transitions in chronological order with ``reward``, ``done`` and, if needed, ``next_obs``; they are
            changed.
        nstep: n, >= 1; with 1 nothing is changed.
        cum_reward: Whether ``reward`` becomes the discounted sum, shape (1,), in place of n rewards, shape (n,), with 0
            for steps after the sequence.
        correct_terminate_gamma: Whether ``value_gamma`` is added: gamma to the power of the steps in the sequence.
        gamma: Discount factor, in [0, 1].
    """
    if nstep == 1:
        return data
    size, rewards = len(data), [one["reward"] for one in data]
    ends = [min(start + nstep, size) - 1 for start in range(size)]  # the last step of each return
    after: list[Transition] = [{name: data[end][name] for name in AFTER if name in data[end]} for end in ends]
    for start, (one, end) in enumerate(zip(data, ends, strict=True)):
        window = [*rewards[start : end + 1], *[torch.zeros_like(rewards[0])] * (nstep - 1 - end + start)]
        powers = enumerate(window)
        one["reward"] = sum(step * gamma**power for power, step in powers) if cum_reward else torch.cat(window, dim=-1)
        one |= after[start]
        if correct_terminate_gamma:
            one["value_gamma"] = gamma ** (end - start + 1)
    return data


def get_train_sample(data: Any, unroll_len: int, last_fn_type: str = "last", null_transition: Any = None) -> Any:
    """Return the training samples of a list of transitions: the transitions.

    Args:
        data: Transitions.
        unroll_len: Steps of a sample; only 1, because there are no recurrent policies here.
        last_fn_type: Without effect with samples of one step.
        null_transition: Without effect with samples of one step.

    Raises:
        ValueError: If ``unroll_len`` is not 1.
    """
    require(unroll_len == 1, "unroll_len", "1, because there are no recurrent policies here", unroll_len)
    return data
