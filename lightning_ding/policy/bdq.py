"""BDQ: DQN with a branch of advantages for each dimension of an action, and one value of the state for all of them.

Paper: Tavakoli et al. 2018 (https://arxiv.org/abs/1711.08946); the other parts are those of ``dqn``.

Where this differs: replay is uniform unless ``priority`` is set; the priority is the mean of the errors of the
dimensions instead of their sum (eq. 7); a layer's width and number are those of DQN. The remaining differences are
those of DQN. With ``learn.mean_target`` false, each dimension bootstraps from its own value.

Shapes: B batch, D dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.dqn import DQNConfig, DQNLearnConfig, DQNPolicy
from lightning_ding.policy.q_learning import QBatch, QLearningModelConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class BDQModelConfig(QLearningModelConfig):
    """The Q-network: an encoder, a value of the state, and a branch for each dimension of the action."""

    action_shape: int | Sequence[int] | None = None
    """Number of actions, or one for each dimension; None means that it is taken from the env."""
    head_layer_num: int | None = None
    """Number of hidden layers of the value and of each branch, >= 0; None means 1."""
    a_layer_num: int | None = None
    """Number of hidden layers of each branch, >= 0; None means head_layer_num."""
    v_layer_num: int | None = None
    """Number of hidden layers of the value, >= 0; None means head_layer_num."""


@dataclass(frozen=True, kw_only=True)
class BDQLearnConfig(DQNLearnConfig):
    """Options for updates."""

    mean_target: bool = True
    """Let all dimensions of an action bootstrap from the mean of their values; false: each from its own value."""


@dataclass(frozen=True, kw_only=True)
class BDQConfig(DQNConfig):
    """Everything that can be set of BDQ."""

    nstep: int | None = 1
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    model: BDQModelConfig = field(default_factory=BDQModelConfig)  # type: ignore[assignment]
    """The Q-network."""
    learn: BDQLearnConfig = field(default_factory=BDQLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("bdq")
class BDQPolicy(DQNPolicy):
    """BDQ for multi-discrete, multi-binary and discrete actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": action values}``, a list of
    tensors, one for each dimension of a multi-discrete action.

    Example:
        >>> policy = BDQPolicy({"model": {"obs_shape": 4, "action_shape": [3, 3, 3]}})
        >>> policy.eval_mode.forward(torch.zeros(5, 4))["action"].shape
        torch.Size([5, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = BDQConfig
    config: BDQConfig

    @torch.no_grad()
    def _targets(self, batch: QBatch) -> list[Tensor]:
        """Return the target of each dimension of the action, shapes (B,); equal ones with ``mean_target`` (eq. 6)."""
        targets = super()._targets(batch)
        if not self.config.learn.mean_target or len(targets) == 1:
            return targets
        return [torch.stack(targets).mean(0)] * len(targets)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "bdq", ["lightning_ding.model.bdq"]
