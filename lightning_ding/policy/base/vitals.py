"""Metrics that practitioners look at when a run does not learn, measured on single rounds of training.

A callback requests the measurement of the next round with :meth:`RoundLearner.observe_next_round`. All other rounds
make no operation for it. The measurement draws no random number of the run and changes no weight.

Shapes: S rows of a round (transitions, in any order), A dimensions of an action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from lightning_ding import nested
from lightning_ding.utils.private_api import TorchDispatchMode

ROWS = 256
"""Observations that pass through the network for a measurement."""
SATURATED = 0.99  # from which on an output of tanh hardly has a gradient
FEW_UNITS = 8  # a narrower layer is an output, such as the tanh of an actor
ENTROPY_OF_UNIT_NORMAL = 0.5 * math.log(2 * math.pi * math.e)
RELU = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
TANH = (torch.ops.aten.tanh.default, torch.ops.aten.tanh_.default)
OWN = "lightning_ding.policy."
Batch = dict[str, Any]


@dataclass
class RoundNotes:
    """Notes of the updates of an observed round, for its measurement."""

    norms: dict[int, list[Tensor]] = field(default_factory=dict)
    """Norms of the gradients before clipping, scalars, by the index of their optimizer."""
    limits: dict[int, float | None] = field(default_factory=dict)
    """Norms from which they were clipped, by the same index; None for no clipping."""
    data: Batch | None = None
    """The learning data of the last pass over a rollout, or the last minibatch, raw, of a prioritised buffer."""


def vitals(
    policy: Any, rows: Batch | None, report: Mapping[str, Any], notes: RoundNotes, has_env_reward: bool = True
) -> dict[str, Tensor]:
    """Return the metrics of an observed round, scalars, by their names without ``learn/``.

    Args:
        policy: The policy, a :class:`Policy`, after the updates of the round.
        rows: Transitions of the round as the updates saw them, any leading axes that ``reward`` has; None if unknown.
        report: Results of the last update, by name.
        notes: Notes of the updates of the round.
        has_env_reward: Whether the rewards are those of the env; those of a reward model are left out.
    """
    found = _of_gradients(policy.updater, notes) | _of_values(policy, report, notes)
    if rows is None or "obs" not in rows:
        return found | _of_actor(policy, report, None)
    reward, entry = rows.get("reward"), next(_entries(rows["obs"]), None)
    each = rows.get("terminated", reward)  # of each transition, where agents of a team may each have a reward
    of_sequences = each is not None and entry is not None and entry.shape[: each.ndim] == each.shape
    axes = each.ndim if each is not None and of_sequences else 1  # rewards may have an axis of steps first
    few = nested.apply(lambda x: x.flatten(0, axes - 1)[:ROWS], rows["obs"])
    if reward is not None and has_env_reward and reward.numel():
        found["reward_mean"] = reward.float().mean()
        found["reward_std"] = reward.float().std(unbiased=False)
        found["reward_abs_max"] = reward.float().abs().max()
    if "policy_version" in rows and not policy.on_policy:
        found["data_age"] = policy.progress.train_iter - rows["policy_version"].float().mean()
    return found | _of_observations(few) | _of_network(policy, few) | _of_actor(policy, report, few)


# ---------------------------------------------------------------------- gradients and values


def _of_gradients(updater: Any, notes: RoundNotes) -> dict[str, Tensor]:
    """Return the mean norm of the gradient before clipping of each optimizer, and the share that was clipped."""
    found: dict[str, Tensor] = {}
    for index, optimizer in enumerate(updater.optimizers):
        end = f"_{index}" if index else ""
        if index in notes.norms:
            norms, limit = torch.stack(notes.norms[index]), notes.limits.get(index)
            if limit is not None:
                found[f"clipped_gradients{end}"] = (norms > limit).float().mean()
        else:  # nothing needed the norm of an update; the gradient of the last one is still there
            left = []
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is not None and one.grad.layout == torch.strided:
                        left.append(one.grad)
            if not left:
                continue
            norms = get_total_norm(left)
        found[f"grad_norm{end}"] = norms.mean()
    return found


def _of_values(policy: Any, report: Mapping[str, Any], notes: RoundNotes) -> dict[str, Tensor]:
    """Return mean and spread of the values and of what they are trained towards, in units of the reward."""
    value, target = report.get("q_value"), report.get("target_q_value")
    data = notes.data or {}
    if value is None and "value" in data and "return" in data and hasattr(policy, "_returns_of"):
        value, target = policy._returns_of(data["value"]), policy._returns_of(data["return"])
    if not isinstance(value, Tensor) or not isinstance(target, Tensor) or target.numel() < 2:
        return {}
    number = min(value.ndim, target.ndim)  # of the last axes, which both have; members of an ensemble come first
    if value.shape[value.ndim - number :] != target.shape[target.ndim - number :]:
        return {}  # a policy of a user may report them of other actions, or of other states
    value, target = value.float(), target.float()
    spread = target.var()
    explained = torch.where(spread > 0, 1 - (target - value).var() / spread, torch.zeros_like(spread))
    found = {"value_mean": value.mean(), "value_std": value.std(), "target_mean": target.mean()}
    return found | {"target_std": spread.sqrt(), "explained_variance": explained}


# ---------------------------------------------------------------------- data


def _of_observations(obs: Any) -> dict[str, Tensor]:
    """Return statistics of observations as the network sees them, and the share of entries that ever change."""
    parts = []
    for part in _entries(obs):
        parts.append(part.reshape(len(part), math.prod(part.shape[1:])).float())
    if not parts or len(parts[0]) < 2:
        return {}
    x = torch.cat(parts, 1)
    if not x.numel():
        return {}
    changing = (x.amax(0) > x.amin(0)).float().mean()
    return {"obs_mean": x.mean(), "obs_std": x.std(), "obs_abs_max": x.abs().max(), "obs_changing": changing}


def _entries(obs: Any) -> Iterator[Tensor]:
    """Yield the entries of observations without action masks."""
    if not isinstance(obs, Mapping):
        yield obs
        return
    for name, below in obs.items():
        if name != "action_mask":
            yield from _entries(below)


# ---------------------------------------------------------------------- network and actor


class _ActivationCounter(TorchDispatchMode):
    """Finds hidden units that have the same output for all observations: 0 of a ReLU, or one end of a tanh."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dead: list[Tensor] = []
        """Share of dead units of each hidden layer, scalars."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if (func in RELU or func in TANH) and output.ndim >= 2 and output.shape[1] >= FEW_UNITS:
            units = output.flatten(2).transpose(1, 2).flatten(0, 1) if output.ndim > 2 else output  # pixels are rows
            at_ends = (units > SATURATED).all(0) | (units < -SATURATED).all(0)
            dead = (units == 0).all(0) if func in RELU else at_ends
            self.dead.append(dead.float().mean())
        return output


def _of_network(policy: Any, obs: Any) -> dict[str, Tensor]:
    """Return the share of dead units of the actor and of a separate critic, and how far a bounded actor is saturated.

    The critic has another metric, because it may rightly be a constant, as in CartPole once no episode ends early; the
    actor learns all the same.
    """
    is_own = type(policy)._forward_eval.__module__.startswith(OWN)  # that of a user may change something
    if not is_own or policy.learns_from_sequences or policy.new_memory("eval"):
        return {}
    critic = getattr(policy.model, "compute_critic", None) if hasattr(policy, "_returns_of") else None
    critic = None if critic is None else getattr(policy, "_critic_output", critic)
    found: dict[str, Tensor] = {}
    generator, devices = policy.rng.bit_generator.state, [policy.device] if policy.device.type == "cuda" else []
    with torch.no_grad(), policy._in_eval_mode, torch.random.fork_rng(devices=devices):
        try:
            with _ActivationCounter() as of_actor:
                output = policy._forward_eval(obs)
            with _ActivationCounter() as of_critic:
                if critic is not None:
                    critic(obs)
        finally:
            policy.rng.bit_generator.state = generator
    for name, counter in (("dead_units", of_actor), ("dead_units_critic", of_critic)):
        if counter.dead:
            found[name] = torch.stack(counter.dead).max()
    bounds, action = getattr(policy, "action_bounds", None), output.get("action")
    if bounds is None or not isinstance(action, Tensor) or not action.is_floating_point():
        return found
    action = bounds.from_env(action.flatten(1))  # (S, A), A being the dimensions of all agents of a team
    found["saturated_actions"] = (action.abs() > SATURATED).float().mean()
    found["action_spread"] = action.std(0, unbiased=False).max()
    return found


def _of_actor(policy: Any, report: Mapping[str, Any], obs: Any) -> dict[str, Tensor]:
    """Return how random a stochastic actor is.

    Args:
        policy: The policy.
        report: Report of the last update; ``entropy_loss`` or ``log_prob`` has the entropy in nats.
        obs: Observations of the round, in whose action masks the illegal actions are; None if unknown.

    Returns:
        ``entropy_share``, the entropy divided by that of the uniform policy, for discrete actions. For actions in a
        range ``exp(entropy / A) / 2``, the width of a uniform distribution of this entropy as a share of the range. For
        unbounded actions ``action_std``, the standard deviation of a normal distribution of this entropy, in units of
        half the range.
    """
    section = policy.config.model if hasattr(policy.config, "model") else None
    shape = getattr(section, "action_shape", None)
    of_rollout, of_replay = report.get("entropy_loss"), report.get("log_prob")
    if isinstance(of_rollout, Tensor) and policy.on_policy:
        entropy, kind = of_rollout.float().mean(), getattr(section, "action_space", None)
    elif isinstance(of_replay, Tensor) and hasattr(policy, "temperature"):
        entropy = -of_replay.float().mean()
        kind = "bounded" if hasattr(policy, "action_bounds") else "discrete"
    else:
        return {}
    if kind == "discrete":
        largest = _largest_entropy(shape, obs, report)
        return {} if largest is None else {"entropy_share": entropy / largest.to(entropy)}
    if not isinstance(shape, int):
        return {}
    if kind == "bounded":
        return {"entropy_share": (entropy / shape).exp() / 2}
    return {"action_std": (entropy / shape - ENTROPY_OF_UNIT_NORMAL).exp()}


def _largest_entropy(shape: Any, obs: Any, report: Mapping[str, Any]) -> Tensor | None:
    """Return the mean entropy of the uniform policy over the legal actions in nats; None if it is 0 or unknown."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if "max_entropy" in report:
        largest = report["max_entropy"].float().mean()
    elif mask is not None and isinstance(shape, int):
        largest = mask.bool().flatten(1).sum(1).clamp(min=1).float().log().mean()
    elif mask is not None or shape is None or isinstance(shape, Mapping):
        return None
    else:
        sizes = [shape] if isinstance(shape, int) else list(shape)
        largest = torch.tensor(float(sum(math.log(size) for size in sizes)))
    return largest if float(largest) > 0 else None
