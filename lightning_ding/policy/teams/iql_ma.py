"""Independent Q-learning: each agent of a team learns the values of its actions from its rewards.

Papers: Tan 1993, "Multi-agent reinforcement learning: independent vs. cooperative agents"; with deep networks Tampuu et
al. 2015 (https://arxiv.org/abs/1511.08779).

Where this differs: agents share their weights unless ``model.parameter_sharing`` is false; double Q-learning, and a
target that follows softly. If the env has no rewards of single agents, all learn from that of the team.
"""

from __future__ import annotations

from typing import ClassVar

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.team_q import TeamQConfig, TeamQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("iql_ma")
class IQLMAPolicy(TeamQPolicy[TeamQConfig]):
    """Independent Q-learning of the agents of a team, from individual rewards; action masks.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`TeamQ`.

    Example:
        >>> import torch
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> policy = IQLMAPolicy({"model": sizes})
        >>> policy({"agent_state": torch.zeros(5, 3, 4)}).shape
        torch.Size([5, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = TeamQConfig
    network: ClassVar[str] = "iql_ma"
