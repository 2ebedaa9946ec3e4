"""The values that a policy has of observations, in units of the reward, whatever its algorithm calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_ding import rl

WITHOUT_VALUES = ("pg", "bc", "dt")
"""Algorithms that learn actions only."""
WITH_MEMORY = ("r2d2", "r2d3", "ngu", "recurrent_ppo", "dreamerv3")
"""Algorithms whose values depend on the earlier steps of an episode."""
ACTIONS = (-1.0, 0.0, 1.0)
"""Normalised continuous actions of which :func:`values_of` asks, in addition to the policy's own."""


@torch.no_grad()
def values_of(policy: Any, obs: Tensor, step: int = 1) -> Tensor:
    """Return all values of observations, shape (K, B): of all discrete actions, and as each critic sees them.

    The value of an action is the mean of its distribution, where an algorithm learns one. A network with memory has
    seen each observation in all steps of its episode up to ``step``, from 1. The last row is that of the policy's own
    action.
    """
    with policy._in_eval_mode:
        if hasattr(policy.model, "first_state"):
            state = policy.model.first_state(len(obs))
            for _ in range(step - 1):
                state = policy.model.act(obs, state)["state"]
            return _of_memory(policy, policy.model.act(obs, state))
        if hasattr(policy, "critic_loss"):
            return torch.cat([policy.model.compute_critic(obs, a)["q_value"] for a in _actions(policy, obs)])
        if hasattr(policy, "_returns_of"):
            return policy._returns_of(policy._values(obs)).unsqueeze(0)  # type: ignore[no-any-return]
        if hasattr(policy, "_state_value"):
            return policy._state_value(obs).unsqueeze(0)  # type: ignore[no-any-return]
        if hasattr(policy.model, "compute_critic"):
            return policy.model.compute_critic(obs)["value"].unsqueeze(0)  # type: ignore[no-any-return]
        return _of_actions(policy.model(obs)["logit"])


def value_of(policy: Any, obs: Tensor, step: int = 1) -> Tensor:
    """Return the value of each observation if the policy acts in it, shape (B,): of two critics the smaller one."""
    if not hasattr(policy, "critic_loss"):
        return values_of(policy, obs, step)[-1]
    with torch.no_grad(), policy._in_eval_mode:
        return policy.model.compute_critic(obs, _own_action(policy, obs))["q_value"].amin(0)  # type: ignore[no-any-return]


@torch.no_grad()
def values_along(policy: Any, obs: Tensor) -> Tensor:
    """Return the value of each observation if the policy acts in it, shape (B,); they follow each other in an episode.

    Without memory this is :func:`value_of`.
    """
    if not hasattr(policy.model, "first_state"):
        return value_of(policy, obs)
    state, found = policy.model.first_state(1), []
    for one in obs.split(1):
        output = policy.model.act(one, state)
        state = output["state"]
        found.append(_of_memory(policy, output)[-1])
    return torch.cat(found)


def _of_memory(policy: Any, output: dict[str, Tensor]) -> Tensor:
    if "value" in output:
        return policy._returns_of(output["value"]).unsqueeze(0)  # type: ignore[no-any-return]
    q = output["logit"]
    return _of_actions(rl.value_unscale(q) if policy.config.learn.value_rescale else q)


def _of_actions(q: Tensor) -> Tensor:
    """Return values of actions, shape (B, A), with that of the best one as the last row."""
    return torch.cat([q.T, q.amax(1).unsqueeze(0)])


def _actions(policy: Any, obs: Tensor) -> list[Tensor]:
    own = _own_action(policy, obs)
    if not own.is_floating_point():
        number = policy.config.model.action_shape
        return [*(torch.full((len(obs),), action) for action in range(number)), own]
    return [*(torch.full_like(own, action) for action in ACTIONS), own]


def _own_action(policy: Any, obs: Tensor) -> Tensor:
    return policy._normalised(policy.eval_mode.forward(obs)["action"])  # type: ignore[no-any-return]
