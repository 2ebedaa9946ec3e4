"""MADQN: agents whose action values learn from those of others that know more.

Source: DI-engine's policy of this name; there is no paper. Each agent has two networks. The first one acts, and sees
what the agent sees. The second one, which is used in learning only, also sees the global state, so that what the
others do is no noise to it. The targets of both come from the target network of the second one; the values of the
agents are added up as in VDN.

Where this differs: double Q-learning, also of the second network, a target that follows softly, and agents without
memory unless ``model.core.type`` is set. One optimizer has both losses.

Shapes: T steps of a sequence, B sequences, N agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lightning_ding.config import searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.team_q import TeamQBatch, TeamQConfig, TeamQModelConfig, TeamQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class MADQNModelConfig(TeamQModelConfig):
    """The action values of the agents, and those that learn with more knowledge."""

    global_cooperation: bool = True
    """Whether the second network sees the global state in addition to what the agent sees."""


@dataclass(frozen=True, kw_only=True)
class MADQNConfig(TeamQConfig):
    """Everything that can be set of MADQN."""

    nstep: int = searched(3, "int(1, 5)")
    """Steps of the return, >= 1; fewer at an episode's end."""
    model: MADQNModelConfig = field(default_factory=MADQNModelConfig)
    """The action values of the agents, and those that learn with more knowledge."""


@POLICY_REGISTRY.register("madqn")
class MADQNPolicy(TeamQPolicy[MADQNConfig]):
    """MADQN for teams with discrete actions; action masks; recurrent agents.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`MADQNNetwork`.

    Example:
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> MADQNPolicy({"model": sizes}).model.cooperation.encoder.layers.net.layers[0].in_features
        19
    """

    config_class: ClassVar[type[PolicyConfig]] = MADQNConfig
    network: ClassVar[str] = "madqn"

    def loss(self, batch: TeamQBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of both networks, and the metrics.

        The metrics are those of :meth:`TeamQPolicy.loss`, of the network that acts, and ``cooperation_loss``.
        """
        steps = self._steps(batch)
        prediction = self.model.mix(self._chosen(steps, "logit", batch["action"]), steps.now)
        cooperation = self.model.mix(self._chosen(steps, "cooperation", batch["action"]), steps.now)
        by = steps.later if self.config.learn.double_q else steps.target
        steps = steps._replace(following=self._greedy(by["cooperation"], steps.after))
        target = self._targets(batch, steps, "cooperation", self.target_model.mix)
        cooperation_loss = self._td_loss(batch, steps, cooperation, target)
        loss = self._td_loss(batch, steps, prediction, target) + cooperation_loss
        loss, report = self._result(batch, steps, prediction, target, loss)
        return loss, report | {"cooperation_loss": cooperation_loss.detach()}
