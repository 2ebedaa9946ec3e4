"""QTRAN: a joint action value of any form, and values of the agents whose best actions are its best joint action.

Paper: Son et al. 2019 (https://arxiv.org/abs/1905.05408), QTRAN-base: the conditions in theorem 1, the losses in
equations 5 to 7.

The sum of the agents' values plus a value of the state is equal to the joint value where all agents choose their best
action, and not below it elsewhere.

Where this differs: as QMIX, see there. The agents' features are part of the joint value, which therefore trains their
encoder too.

Shapes: T steps of a sequence, B sequences, N agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.teams.team_q import (
    TeamQBatch,
    TeamQConfig,
    TeamQLearnConfig,
    TeamQModelConfig,
    TeamQPolicy,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class QTRANModelConfig(TeamQModelConfig):
    """The action values of the agents, and the values of joint actions and of states."""

    embedding_size: int = 64
    """Width of the hidden layers of the values of joint actions and of states, >= 1."""


@dataclass(frozen=True, kw_only=True)
class QTRANLearnConfig(TeamQLearnConfig):
    """Options for updates."""

    td_weight: float = 1.0
    """Weight of the temporal-difference loss of the joint value, >= 0."""
    opt_weight: float = 1.0
    """Weight of the loss of the best joint action, >= 0."""
    nopt_min_weight: float = 1.0
    """Weight of the loss of other joint actions, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("td_weight", "opt_weight", "nopt_min_weight"):
            require(getattr(self, name) >= 0, f"learn.{name}", ">= 0", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class QTRANConfig(TeamQConfig):
    """Everything that can be set of QTRAN."""

    model: QTRANModelConfig = field(default_factory=QTRANModelConfig)
    """The action values of the agents, and the values of joint actions and of states."""
    learn: QTRANLearnConfig = field(default_factory=QTRANLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("qtran")
class QTRANPolicy(TeamQPolicy[QTRANConfig]):
    """QTRAN-base for teams with discrete actions; action masks; recurrent agents.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`QTRANNetwork`.

    Example:
        >>> sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> QTRANPolicy({"model": sizes}).model.joint.action_size
        2
    """

    config_class: ClassVar[type[PolicyConfig]] = QTRANConfig
    network: ClassVar[str] = "qtran"

    def loss(self, batch: TeamQBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the three losses, and the metrics.

        The metrics are those of :meth:`TeamQPolicy.loss`, of the joint value, and ``td_loss``, ``opt_loss`` and
        ``nopt_loss``.
        """
        steps, learn = self._steps(batch), self.config.learn
        feature, alive, state = steps.output["feature"], steps.alive[:-1], self.model.state_of(steps.now)
        best = self._greedy(steps.output["logit"].detach(), steps.now)
        joint = self.model.joint(feature, batch["action"], alive, state)
        with torch.no_grad():
            state_after = self.target_model.state_of(steps.after)
            after = (steps.target["feature"], steps.following, steps.alive[1:], state_after)
            target = self._targets_of(batch, steps, self.target_model.joint(*after))
            joint_of_best = self.model.joint(feature, best, alive, state)
        of_state = self.model.joint.of_state(state)
        best_gap = self.model.mix(self._chosen(steps, "logit", best), steps.now) - joint_of_best + of_state
        chosen = self._chosen(steps, "logit", batch["action"])
        gap = self.model.mix(chosen, steps.now) - joint.detach() + of_state
        zeros = torch.zeros_like(gap)
        td_loss = self._td_loss(batch, steps, joint, target)
        opt_loss = self._td_loss(batch, steps, best_gap, zeros)
        nopt_loss = self._td_loss(batch, steps, gap.clamp(max=0), zeros)
        loss = learn.td_weight * td_loss + learn.opt_weight * opt_loss + learn.nopt_min_weight * nopt_loss
        loss, report = self._result(batch, steps, joint, target, loss)
        parts = {"td_loss": td_loss, "opt_loss": opt_loss, "nopt_loss": nopt_loss}
        return loss, report | {name: part.detach() for name, part in parts.items()}
