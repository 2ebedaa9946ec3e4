"""VDN: the value of a team is the sum of the values of its agents.

Paper: Sunehag et al. 2017 (https://arxiv.org/abs/1706.05296), section 3.

Where this differs: double Q-learning, a target that follows softly, agents without memory unless ``model.core.type``
is set, and no dueling network. A sum cannot say that an action is good only together with another one, so the team may
choose a joint action that is far from the best one.
"""

from __future__ import annotations

from typing import ClassVar

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.team_q import TeamQConfig, TeamQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("vdn")
class VDNPolicy(TeamQPolicy[TeamQConfig]):
    """VDN for teams with discrete actions; action masks; recurrent agents.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`VDNNetwork`.

    Example:
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> VDNPolicy({"model": sizes}).config.learn.double_q
        True
    """

    config_class: ClassVar[type[PolicyConfig]] = TeamQConfig
    network: ClassVar[str] = "vdn"
