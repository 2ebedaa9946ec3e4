"""PPG from a replay buffer: the policy phase learns from minibatches of the last rollouts, as ``ppo_offpolicy``.

Paper: Cobbe et al. 2021, algorithm 1 (https://arxiv.org/abs/2009.04416). After ``learn.aux_freq`` updates, an auxiliary
phase makes ``learn.aux_train_epoch`` passes over the minibatches of these updates; it is that of ``ppg``. DI-engine is
the source of this form and of its defaults.

Where this differs: actor and critic learn from the same minibatches of one buffer, where DI-engine has two buffers of
different sizes. The targets of the auxiliary phase are the returns of the updates, in the units that the critic has
then. ``train_iter`` counts the updates of the policy phase. The remaining differences are those of ``ppo_offpolicy``.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy_options import ActorCriticModelConfig
from lightning_ding.policy.ppg import ROLLOUTS, AuxiliaryLearnConfig, PPGPolicy
from lightning_ding.policy.ppo_offpolicy import PPOOffConfig, PPOOffLearnConfig, PPOOffPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class PPGOffModelConfig(ActorCriticModelConfig):
    """The network, whose actor and critic are separate."""

    share_encoder: bool = False
    """Must be false: the auxiliary phase brings values into the actor's features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.share_encoder, "model.share_encoder", "False with ppg_offpolicy", self.share_encoder)


@dataclass(frozen=True, kw_only=True)
class PPGOffLearnConfig(PPOOffLearnConfig, AuxiliaryLearnConfig):
    """Options for updates."""

    aux_freq: int = 5
    """Updates between two auxiliary phases, >= 1; their observations stay in memory until then."""


@dataclass(frozen=True, kw_only=True)
class PPGOffConfig(PPOOffConfig):
    """Everything that can be set of PPG from replay."""

    kind: ClassVar[str] = "ppg_offpolicy"
    model: PPGOffModelConfig = field(default_factory=PPGOffModelConfig)
    """The network."""
    learn: PPGOffLearnConfig = field(default_factory=PPGOffLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("ppg_offpolicy")
class PPGOffPolicy(PPOOffPolicy):
    """PPG from replay; the actions and observations of :class:`PPOOffPolicy`.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`PPG`.

    Example:
        >>> policy = PPGOffPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PPGOffConfig
    parts_of_model: ClassVar[tuple[str, ...]] = PPGPolicy.parts_of_model
    config: PPGOffConfig
    _rollouts: list[Batch]  # minibatches since the last phase: observations, and returns in units of the reward

    # the auxiliary phase is that of PPG
    _auxiliary_phase: Any = PPGPolicy._auxiliary_phase
    _auxiliary_update: Any = PPGPolicy._auxiliary_update
    _logits_of: Any = PPGPolicy._logits_of
    auxiliary_loss: Any = PPGPolicy.auxiliary_loss
    joint_loss: Any = PPGPolicy.joint_loss
    auxiliary_critic_loss: Any = PPGPolicy.auxiliary_critic_loss

    def _init_learn(self) -> None:
        super()._init_learn()
        self._rollouts = []

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a minibatch, and from those of a phase if it is the last one; return the last metrics of both."""
        minibatch = self._minibatch_of(batch)
        report = self._update(minibatch | self.updater.schedules.tensors)
        kept = {"obs": minibatch["obs"], "return": self._returns_of(minibatch["return"])}
        self._rollouts.append(cast(Batch, nested.apply(torch.clone, kept)))  # the memory of a round is used again
        if len(self._rollouts) < self.config.learn.aux_freq:
            return report
        return {**report, **self._auxiliary_phase()}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {ROLLOUTS: list(self._rollouts)}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self._rollouts = [cast(Batch, nested.to(one, self.device)) for one in state[ROLLOUTS]]

    def collect_memory(self) -> dict[str, Any]:
        """Return this rank's minibatches of the unfinished phase, and the state of its exploration."""
        memory = super().collect_memory()
        return {**memory, ROLLOUTS: list(self._rollouts)} if self._rollouts else memory

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Restore the state that ``collect_memory`` returned."""
        rest = dict(memory)
        rollouts = rest.pop(ROLLOUTS, [])
        super().load_collect_memory(rest)
        self._rollouts = [cast(Batch, nested.to(one, self.device)) for one in rollouts]

    def _monitor_vars_learn(self) -> list[str]:
        of_phases = ["auxiliary_value_loss", "auxiliary_critic_loss", "cloning_loss"]
        return [*super()._monitor_vars_learn(), *of_phases]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor-critic network."""
        return "ppg", ["lightning_ding.model.ppg"]
