"""Weighted QMIX: QMIX whose errors of joint actions that look worse than the best one have a small weight.

Paper: Rashid et al. 2020 (https://arxiv.org/abs/2006.10800): weightings, equations 4 and 5; the central value and the
targets, section 5.

A central value of any form is learned at the same time. Its value of the joint action that QMIX prefers is the target
of both, so the targets are not limited to what QMIX can represent.

Where this differs: as QMIX, see there. One optimizer has both losses. The targets are those of target networks, as in
the paper.

Shapes: T steps of a sequence, B sequences, N agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.qmix import QMIXConfig, QMIXModelConfig
from lightning_ding.policy.teams.team_q import Steps, TeamQBatch, TeamQLearnConfig, TeamQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class WQMIXModelConfig(QMIXModelConfig):
    """The action values of the agents, the mixer, and the central value."""

    central_embed_dim: int = 256
    """Width of the three hidden layers of the central mixer, >= 1."""


@dataclass(frozen=True, kw_only=True)
class WQMIXLearnConfig(TeamQLearnConfig):
    """Options for updates."""

    wqmix_ow: bool = True
    """Optimistic weighting: errors of values above their targets have the weight alpha. False for central weighting:
    those of joint actions other than the best one, unless their targets are above the central value of that."""
    alpha: float = 0.1
    """The small weight, in (0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.alpha <= 1, "learn.alpha", "in (0, 1]", self.alpha)


@dataclass(frozen=True, kw_only=True)
class WQMIXConfig(QMIXConfig):
    """Everything that can be set of weighted QMIX."""

    model: WQMIXModelConfig = field(default_factory=WQMIXModelConfig)
    """The action values of the agents, the mixer, and the central value."""
    learn: WQMIXLearnConfig = field(default_factory=WQMIXLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("wqmix")
class WQMIXPolicy(TeamQPolicy[WQMIXConfig]):
    """Weighted QMIX for teams with discrete actions; action masks; recurrent agents.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`WQMIXNetwork`.

    Example:
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> WQMIXPolicy({"model": sizes}).model.central_mixer.layers.layers[0].in_features
        15
    """

    config_class: ClassVar[type[PolicyConfig]] = WQMIXConfig
    network: ClassVar[str] = "wqmix"

    def loss(self, batch: TeamQBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the weighted loss of QMIX's value and the loss of the central value, and the metrics.

        The metrics are those of :meth:`TeamQPolicy.loss`, of QMIX's value, and ``central_loss``.
        """
        steps = self._steps(batch)
        prediction = self.model.mix(self._chosen(steps, "logit", batch["action"]), steps.now)
        central = self.model.mix_central(self._chosen(steps, "central", batch["action"]), steps.now)
        target = self._targets(batch, steps, "central", self.target_model.mix_central)
        weight = self._weighting(batch, steps, prediction.detach(), target)
        central_loss = self._td_loss(batch, steps, central, target)
        loss = self._td_loss(batch, steps, prediction, target, weight) + central_loss
        loss, report = self._result(batch, steps, prediction, target, loss)
        return loss, report | {"central_loss": central_loss.detach()}

    @torch.no_grad()
    def _weighting(self, batch: TeamQBatch, steps: Steps, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the weight of each error of QMIX's value, 1 or ``alpha``, shape (T, B)."""
        if self.config.learn.wqmix_ow:
            is_whole = prediction < target
        else:
            best = self._greedy(steps.output["logit"], steps.now)
            of_best = self.model.mix_central(self._chosen(steps, "central", best), steps.now)
            is_best = ((batch["action"] == best) | (steps.alive[:-1] == 0)).all(-1)
            is_whole = is_best | (target > of_best)
        return torch.where(is_whole, 1.0, self.config.learn.alpha)
