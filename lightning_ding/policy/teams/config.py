"""The options of the networks of teams, and the units of a team's actions.

Shapes: N agents, A actions or dimensions of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gymnasium import spaces

from lightning_ding.config import moved
from lightning_ding.policy.base.action_bounds import action_bounds
from lightning_ding.policy.base.config import WITHOUT_SDE
from lightning_ding.policy.base.spaces import discrete_action, is_integer_box
from lightning_ding.utils.teams import team_shapes

TEAM_SHAPES = ("agent_num", "agent_obs_shape", "global_obs_shape", "action_shape")
"""Entries of the ``model`` section that a network of a team needs; the ``shape_names`` of policies."""


@dataclass(frozen=True, kw_only=True)
class TeamModelConfig:
    """The network of every algorithm of teams: the spaces of its env, and the layers of its agents."""

    MOVED: ClassVar[dict[str, str]] = WITHOUT_SDE | moved(
        obs_shape="set agent_obs_shape and global_obs_shape",
        encoder="the agents of this policy see vectors; set encoder_hidden_size_list",
    )

    agent_num: int | None = None
    """Number of agents N; None means that it is taken from the env."""
    agent_obs_shape: int | Sequence[int] | None = None
    """Size of what an agent sees, or the shape of its image; None means that it is taken from the env."""
    global_obs_shape: int | Sequence[int] | None = None
    """Size of the global state or of all that the agents see, or the shape of an image or of a stack of images; None
    means that it is taken from the env."""
    action_shape: int | Sequence[int] | None = None
    """Number of actions of an agent, or of each agent where they differ, or number of dimensions; None means that it
    is taken from the env."""
    action_start: Sequence[int] | None = None
    """Smallest discrete action of each agent; None means the env's, or 0 without an env."""
    parameter_sharing: bool | Sequence[int] = True
    """Whether all agents share one network; or the number of each agent's network, counted from 0."""
    agent_id: bool = True
    """Whether agents that share a network see their own number, as a one-hot vector."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the layers of an agent; None means 64, 64."""
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Activation function after every hidden layer."""
    layer_norm: bool = False
    """Normalise every hidden layer before its activation."""


@dataclass(frozen=True, kw_only=True)
class TeamImageModelConfig(TeamModelConfig):
    """The network of an algorithm of teams whose agents may see images."""

    MOVED: ClassVar[dict[str, str]] = {key: hint for key, hint in TeamModelConfig.MOVED.items() if key != "encoder"}

    encoder: str | None = None
    """Registered encoder of images (conv, impala or your own), which precedes the layers of an agent; None means conv.
    Left out for a team that sees vectors."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further options of that encoder by name, such as channels, feature_size, kernel_size and stride; see the page on
    networks."""


def team_section(observation_space: spaces.Space[Any], action_space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return the entries of a team's ``model`` section that an env determines: its shapes and the units of actions.

    Args:
        observation_space: That of one env, see ``lightning_ding.utils.teams``.
        action_space: That of one env.
        policy: Name of the policy that asks, for the message.

    Returns:
        What :func:`team_shapes` returns; ``action_start`` of discrete actions; of continuous ones ``action_low`` and
        ``action_high``, the bounds of all N A numbers, and ``action_integer``.
    """
    shapes = team_shapes(observation_space, action_space, policy)
    if isinstance(action_space, spaces.Box):
        low, high = action_bounds(action_space)
        return shapes | {"action_low": low, "action_high": high, "action_integer": is_integer_box(action_space)}
    return shapes | {"action_start": discrete_action(action_space, policy)["action_start"]}
