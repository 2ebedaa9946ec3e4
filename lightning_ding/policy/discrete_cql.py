"""CQL for discrete actions: QR-DQN on a data set, with values that are low for actions that are not in the data.

Paper: Kumar et al. 2020, eq. 4 (https://arxiv.org/abs/2006.04779), the variant CQL(H), on the quantiles of QR-DQN.

Where this differs: illegal actions are left out of the sum over actions; importance-sampling weights weigh the quantile
loss only.

Shapes: B batch, A actions, N quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.q_learning import QBatch
from lightning_ding.policy.qrdqn import QRDQNConfig, QRDQNLearnConfig, QRDQNPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLLearnConfig(QRDQNLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    min_q_weight: float = 1.0
    """Weight of the conservative term in the loss, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.min_q_weight >= 0, "learn.min_q_weight", ">= 0", self.min_q_weight)


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(QRDQNConfig):
    """Everything that can be set of CQL for discrete actions."""

    learn: DiscreteCQLLearnConfig = field(default_factory=DiscreteCQLLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("discrete_cql")
class DiscreteCQLPolicy(QRDQNPolicy):
    """CQL for discrete actions; vector, image and dict observations; action masks.

    :class:`QRDQNPolicy` describes a network passed as ``model``.

    Example:
        >>> DiscreteCQLPolicy({"learn": {"min_q_weight": 2.0}}).config.learn.kappa
        1.0
    """

    config_class: ClassVar[type[PolicyConfig]] = DiscreteCQLConfig
    supports_tensors: ClassVar[bool] = False
    trains_on: ClassVar[str] = "dataset"
    config: DiscreteCQLConfig

    def loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return QR-DQN's loss plus the conservative term, and the metrics to report; see :meth:`QRDQNPolicy.loss`.

        It also reports ``conservative_gap``, shape (B,): log sum exp of the values minus that of the data's action.
        """
        output = self._output(self.model, batch["obs"])
        quantiles = rl.take_action_distribution(output["q"], batch["action"])
        loss, report = self._quantile_loss(batch, quantiles, output["tau"])
        values, _ = self._values(output, batch["obs"])[0]
        gap = rl.discrete_conservative_gap(values, batch["action"])
        loss = loss + self.config.learn.min_q_weight * gap.mean()
        return loss, {**report, "total_loss": loss.detach(), "conservative_gap": gap.detach()}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "conservative_gap"]
