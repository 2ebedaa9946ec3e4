"""QMIX: the value of a team is a monotonic function of the values of its agents, which depends on the state.

Paper: Rashid et al. 2018 (https://arxiv.org/abs/1803.11485), section 4.

Where this differs: double Q-learning, a target that follows softly, Adam, agents without memory unless
``model.core.type`` is set, and no last action among the observations. A minibatch with memory has pieces of episodes
that begin with their stored state, where the paper has whole episodes; ``learn_unroll_len`` may be the length of an
episode. The value of a team cannot fall when the value of an agent rises, so the team may miss the best joint action of
a game in which it does; see WQMIX and QTRAN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.team_q import TeamQConfig, TeamQModelConfig, TeamQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class QMIXModelConfig(TeamQModelConfig):
    """The action values of the agents, and the mixer."""

    mixing_embed_dim: int = 32
    """Width of the mixer's hidden layer, >= 1."""
    hypernet_embed: int = 64
    """Width of the networks that compute the mixer's weights from the global state, >= 1."""


@dataclass(frozen=True, kw_only=True)
class QMIXConfig(TeamQConfig):
    """Everything that can be set of QMIX."""

    model: QMIXModelConfig = field(default_factory=QMIXModelConfig)
    """The action values of the agents, and the mixer."""


@POLICY_REGISTRY.register("qmix")
class QMIXPolicy(TeamQPolicy[QMIXConfig]):
    """QMIX for teams with discrete actions; action masks; recurrent agents.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`QMIXNetwork`.

    Example:
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> QMIXPolicy({"model": sizes}).model.mixer.first_bias
        Linear(in_features=12, out_features=32, bias=True)
    """

    config_class: ClassVar[type[PolicyConfig]] = QMIXConfig
    network: ClassVar[str] = "qmix"
