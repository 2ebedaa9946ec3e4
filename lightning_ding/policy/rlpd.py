"""RLPD: REDQ that learns from a data set too, half of each minibatch, with layer normalisation in its critics.

Paper: Ball et al. 2023, algorithm 1 (https://arxiv.org/abs/2302.02948). The datamodule draws ``demonstration_share`` of
each minibatch from ``demonstrations``, which is the symmetric sampling of the paper with its default of 0.5. There is
no training before the first env step.

``learn.target_critics`` of 1 or 2, ``learn.with_q_entropy`` and three hidden layers are what the paper chooses for each
env.

Where this differs: as in REDQ, see ``redq``. The target entropy of the authors' code is half of that here: minus half
the dimensions of the action (``learn.target_entropy``). The authors begin with 5,000 random steps
(``random_collect_size``) for locomotion; here it is 1,000. The actor and the temperature step after
``learn.actor_update_freq`` updates of the critics, on the last of their minibatches, as in the authors' code.

Shapes: B batch, E critics, M critics of the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.redq import REDQBatch, REDQConfig, REDQLearnConfig, REDQModelConfig, REDQPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class RLPDModelConfig(REDQModelConfig):
    """The actor and the critics."""

    critic_layer_norm: bool = True
    """Normalise every hidden layer of the critics before its activation; ``layer_norm`` normalises the actor too."""


@dataclass(frozen=True, kw_only=True)
class RLPDLearnConfig(REDQLearnConfig):
    """Options for updates."""

    alpha: float = 1.0
    """Temperature, or the one to start from with auto_alpha, >= 0."""
    with_q_entropy: bool = True
    """Count the entropy in the critics' targets, as SAC does."""


@dataclass(frozen=True, kw_only=True)
class RLPDConfig(REDQConfig):
    """Everything that can be set of RLPD."""

    model: RLPDModelConfig = field(default_factory=RLPDModelConfig)
    """The actor and the critics."""
    learn: RLPDLearnConfig = field(default_factory=RLPDLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("rlpd")
class RLPDPolicy(REDQPolicy):
    """RLPD for continuous actions; vector, image and dict observations.

    It needs a :class:`ReplayDataModule` with ``demonstrations``, of any quality. A network passed as ``model`` is
    described by :class:`REDQPolicy`.

    Example:
        >>> import torch
        >>> policy = RLPDPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = RLPDConfig
    demonstrations: ClassVar[Literal["optional", "needed", "imitated", "refused"]] = "needed"
    config: RLPDConfig

    def _targets(self, batch: REDQBatch) -> Tensor:  # type: ignore[override]
        if self.config.learn.with_q_entropy:
            return super()._targets(batch)
        action, _ = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self._q(self.target_model, batch, "next_obs", action, 0, batch["target_critics"][0])
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)
