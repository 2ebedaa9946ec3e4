"""What a team of agents is to envs, policies and networks: one env with an axis of agents.

Collectors, buffers and checkpoints treat such an env as any other. Its observations are a Dict with these entries:

* ``agent_state`` (N, D): what each agent sees; filled up with zeros where agents see less. Agents that all see images
  have (N, height, width, channels) or (N, channels, height, width), and then ``alive`` is needed.
* ``global_state`` (S,) or an image, optional: what is known in training only. Without it, it is all observations side
  by side; those of images are a stack of images.
* ``action_mask``, optional: the legal actions of all agents side by side, of length A_1 + ... + A_N, as in any env.
  An agent that has left the episode has a legal action, which is ignored.
* ``alive`` (N,), optional: whether each agent is still in the episode. The value of an agent that is not is 0.
* ``agent_reward`` (N,), optional: the reward of each agent in the step that led here, zeros after a reset. Networks do
  not see it. Without it, each agent gets the reward of the team, which is the reward of the env.

Actions are a MultiDiscrete space with the number of actions of each agent, or a Box of shape (N, number of
dimensions).

Shapes: B batch, N agents, D numbers that an agent sees, S size of the global state, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from torch import Tensor  # not at run time, because env processes import this module

AGENT_STATE, GLOBAL_STATE, ACTION_MASK = "agent_state", "global_state", "action_mask"
ALIVE, AGENT_REWARD = "alive", "agent_reward"


def team_shapes(observation_space: spaces.Space[Any], action_space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return the entries of a policy's ``model`` section that the spaces of a team's env determine.

    Args:
        observation_space: That of one env, see the head of this file.
        action_space: That of one env.
        policy: Name of the policy that asks, for the message.

    Returns:
        ``agent_num``; ``agent_obs_shape`` and ``global_obs_shape``: the size of a vector or the shape of an image; and
        ``action_shape``: the number of actions or dimensions of an agent, or a tuple of the numbers of actions where
        they differ.

    Raises:
        TypeError: If these are not the spaces of a team.

    Example:
        >>> seen = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 4))})
        >>> team_shapes(seen, spaces.MultiDiscrete([5, 5, 5]), "qmix")
        {'agent_num': 3, 'agent_obs_shape': 4, 'global_obs_shape': 12, 'action_shape': 5}
    """
    entries: Any = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    known = entries.get(GLOBAL_STATE)
    is_discrete = isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1
    is_box = isinstance(action_space, spaces.Box) and len(action_space.shape) == 2
    if not (is_team(observation_space) and (is_discrete or is_box)):
        raise TypeError(
            f"{policy} needs the env of a team: observations that are a Dict with the entry {AGENT_STATE!r} of shape "
            f"(agents, numbers), or (agents, *image) with an entry {ALIVE!r}, and actions that are a MultiDiscrete "
            "with a number for each agent or a Box of shape (agents, dimensions); "
            f"got {observation_space} and {action_space}"
        )
    number, *shape = entries[AGENT_STATE].shape
    space: Any = action_space
    counts = tuple(space.nvec.tolist()) if is_discrete else space.shape
    if (is_discrete and len(counts) != number) or (is_box and counts[0] != number):
        raise TypeError(f"{policy} needs actions of all {number} agents of {AGENT_STATE!r}, got {action_space}")
    action: Any = (counts[0] if len(set(counts)) == 1 else counts) if is_discrete else counts[1]
    is_image = len(shape) == 3
    joined = (number, *shape) if is_image else number * shape[0]
    state = joined if known is None else known.shape if len(known.shape) == 3 else int(np.prod(known.shape))
    seen = tuple(shape) if is_image else shape[0]
    return {"agent_num": number, "agent_obs_shape": seen, "global_obs_shape": state, "action_shape": action}


def is_team(observation_space: Any) -> bool:
    """Return whether observations are those of a team: a Dict with what each agent sees, vectors or images."""
    entries: Any = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    seen = entries.get(AGENT_STATE)
    axes = len(seen.shape) if isinstance(seen, spaces.Box) else 0
    return axes == 2 or (axes == 4 and ALIVE in entries)


def action_counts(agent_num: int, action_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of actions of each agent."""
    return (action_shape,) * agent_num if isinstance(action_shape, int) else tuple(action_shape)


def global_state(obs: Mapping[str, Tensor]) -> Tensor:
    """Return the global state, shape (..., S) or (..., *image): what the env gives, or else what all agents see.

    What they see is side by side, shape (..., N D); images are a stack, shape (..., N, *image).
    """
    if GLOBAL_STATE in obs:
        return obs[GLOBAL_STATE]
    seen = obs[AGENT_STATE]
    return seen if seen.ndim > len(axes_of_agents(obs)) + 1 else seen.flatten(-2)


def axes_of_agents(obs: Mapping[str, Tensor]) -> Sequence[int]:
    """Return the axes (..., N) of a number for each agent."""
    return obs[ALIVE].shape if ALIVE in obs else obs[AGENT_STATE].shape[:-1]


def alive(obs: Mapping[str, Tensor]) -> Tensor:
    """Return 1 for each agent that is in the episode and 0 for the others, floats of shape (..., N)."""
    seen = obs[AGENT_STATE]
    if ALIVE not in obs:
        return seen.new_ones(seen.shape[:-1])
    return obs[ALIVE].to(seen.dtype) if seen.is_floating_point() else obs[ALIVE].float()


def legal_actions(obs: Mapping[str, Tensor], counts: Sequence[int]) -> Tensor | None:
    """Return which actions are legal, bools of shape (..., N, A), A being the largest count.

    Args:
        obs: Observations, leading axes (...).
        counts: Number of actions of each agent.

    Returns:
        The mask; None if all actions of all agents are always legal. Actions that an agent does not have are illegal.
    """
    import torch

    largest, mask = max(counts), obs.get(ACTION_MASK)
    if mask is not None and len(set(counts)) == 1:
        return mask.bool().unflatten(-1, (len(counts), largest))  # type: ignore[no-any-return]
    if mask is not None:
        parts = [torch.nn.functional.pad(part, (0, largest - part.shape[-1])) for part in mask.split(list(counts), -1)]
        return torch.stack(parts, -2).bool()
    if len(set(counts)) == 1:
        return None
    has = torch.arange(largest)[None] < torch.tensor(counts)[:, None]
    return has.to(obs[AGENT_STATE].device).expand(*axes_of_agents(obs), largest)


def agent_rewards(batch: Mapping[str, Any]) -> Tensor:
    """Return the reward of each agent, shape (..., N): its own where the env gives one, or else that of the team."""
    following = batch["next_obs"]
    if AGENT_REWARD in following:
        return following[AGENT_REWARD]  # type: ignore[no-any-return]
    return batch["reward"].unsqueeze(-1).expand(axes_of_agents(following))  # type: ignore[no-any-return]
