"""PPG: PPO in phases; from time to time the actor learns the values too, while its policy is held where it is.

Paper: Cobbe et al. 2021, algorithm 1 (https://arxiv.org/abs/2009.04416). In the policy phase, actor and critic have no
common layers and learn as in ``ppo``. After ``learn.aux_freq`` rollouts, an auxiliary phase makes
``learn.aux_train_epoch`` passes over all of them: a second value head trains the actor's features, the distance to the
policy from before the phase is a part of the loss, and the critic learns too.

Where this differs: one number of passes, ``learn.epoch_per_collect``, holds for the actor and the critic. The auxiliary
phase has the optimizers and the minibatches of the policy phase; the authors' has separate moments and larger
minibatches. The targets of the auxiliary phase are the returns of the policy phase, in the units that the critic has
then. Advantages are standardised in each minibatch. The remaining differences are those of PPO.

Shapes: B batch, S transitions of the rollouts of a phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import LARGEST_FORWARD, ActorCriticPolicy
from lightning_ding.policy.on_policy_options import SDEActorCriticModelConfig
from lightning_ding.policy.ppo import ClippedSurrogateLearnConfig, PPOConfig, PPOLearnConfig, PPOPolicy
from lightning_ding.registry import POLICY_REGISTRY

ROLLOUTS = "rollouts"  # name of the rollouts of an unfinished phase in a checkpoint


@dataclass(frozen=True, kw_only=True)
class PPGModelConfig(SDEActorCriticModelConfig):
    """The network, whose actor and critic are separate."""

    share_encoder: bool = False
    """Must be false: the auxiliary phase brings values into the actor's features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.share_encoder, "model.share_encoder", "False with ppg", self.share_encoder)


@dataclass(frozen=True, kw_only=True)
class AuxiliaryLearnConfig(ClippedSurrogateLearnConfig):
    """Options for auxiliary phases."""

    aux_freq: int = 32
    """Rollouts between two auxiliary phases, >= 1; their observations stay in memory until then."""
    aux_train_epoch: int = 6
    """Passes over these rollouts in an auxiliary phase, >= 1."""
    aux_bc_weight: float = 1.0
    """Weight of the divergence from the policy before an auxiliary phase, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.aux_freq >= 1, "learn.aux_freq", ">= 1", self.aux_freq)
        require(self.aux_train_epoch >= 1, "learn.aux_train_epoch", ">= 1", self.aux_train_epoch)
        require(self.aux_bc_weight >= 0, "learn.aux_bc_weight", ">= 0", self.aux_bc_weight)


@dataclass(frozen=True, kw_only=True)
class PPGLearnConfig(PPOLearnConfig, AuxiliaryLearnConfig):
    """Options for updates."""

    epoch_per_collect: int = 1
    """Passes over a rollout in the policy phase, >= 1."""


@dataclass(frozen=True, kw_only=True)
class PPGConfig(PPOConfig):
    """Everything that can be set of PPG."""

    model: PPGModelConfig = field(default_factory=PPGModelConfig)
    """The network."""
    learn: PPGLearnConfig = field(default_factory=PPGLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("ppg")
class PPGPolicy(ActorCriticPolicy[PPGConfig]):
    """PPG; the actions and observations of :class:`PPOPolicy`.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`PPG`.

    Example:
        >>> policy = PPGPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PPGConfig
    parts_of_model: ClassVar[tuple[str, ...]] = (*ActorCriticPolicy.parts_of_model, "compute_auxiliary")
    supports_tensors: ClassVar[bool] = True
    config: PPGConfig
    _rollouts: list[Batch]  # of the present phase: observations, and returns in units of the reward

    # the passes over a rollout and the losses of the policy phase are those of PPO
    _has_moved_far: Any = PPOPolicy._has_moved_far
    _policy_loss: Any = PPOPolicy._policy_loss
    _value_loss: Any = PPOPolicy._value_loss

    def _init_learn(self) -> None:
        super()._init_learn()
        self._rollouts = []

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout, and from those of a phase if it is the last one; return the last metrics of both."""
        report: dict[str, Any] = PPOPolicy._forward_learn(cast(Any, self), batch)
        if len(self._rollouts) < self.config.learn.aux_freq:
            return report
        return {**report, **self._auxiliary_phase()}

    def _renew_scale(self, data: Batch) -> Batch:
        """Keep what the auxiliary phase needs of a rollout's learning data, after its returns are known."""
        data = super()._renew_scale(data)
        kept = {"obs": data["obs"], "return": self._returns_of(data["return"])}
        self._rollouts.append(cast(Batch, nested.apply(torch.clone, kept)))  # the memory of a rollout is used again
        return data

    def _auxiliary_phase(self) -> dict[str, Any]:
        """Learn from all rollouts of the phase, and return the metrics of the last update."""
        kept: Any = nested.concatenate(self._rollouts)
        data = {"obs": kept["obs"], "return": self._outputs_for(kept["return"])}
        data["old_logit"], self._rollouts = self._logits_of(kept["obs"]), []
        report: dict[str, Any] = {}
        for _ in range(self.config.learn.aux_train_epoch):
            for minibatch in self._minibatches(data):
                report = self._auxiliary_update(minibatch)
                self.progress.train_iter += self.on_policy
        return report

    @torch.no_grad()
    def _logits_of(self, obs: Any) -> Any:
        """Return the actor's output for S observations, as nested dicts."""
        with self._in_eval_mode:
            parts = [_as_dict(self._logit(part)) for part in nested.split(obs, LARGEST_FORWARD)]
        return nested.concatenate(parts)

    def _auxiliary_update(self, minibatch: Batch) -> dict[str, Any]:
        if not self.config.learn.has_two_rates:
            return self.updater.minimise(self.auxiliary_loss, minibatch)
        actor = self.updater.minimise(self.joint_loss, minibatch)
        return {**self.updater.minimise(self.auxiliary_critic_loss, minibatch, 1), **actor}

    def auxiliary_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the joint loss and the critic's loss of a minibatch, and the metrics of both."""
        joint, report = self.joint_loss(batch)
        critic, of_critic = self.auxiliary_critic_loss(batch)
        return joint + critic, {**of_critic, **report}

    def joint_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss in the auxiliary phase (eq. of L_joint), and the metrics to report, detached.

        It reports ``auxiliary_value_loss``, half the mean squared error of the second head, and ``cloning_loss``, the
        mean of KL(old policy || policy), both scalars.
        """
        model: Any = self.model
        output, obs = model.compute_auxiliary(batch["obs"]), batch["obs"]
        value_loss = 0.5 * (output["value"] - batch["return"]).square().mean()
        old, new = (self._distribution(logit, obs) for logit in (_as_logit(batch["old_logit"]), output["logit"]))
        cloning = cast(Any, old).kl(new).mean()
        report = {"auxiliary_value_loss": value_loss.detach(), "cloning_loss": cloning.detach()}
        return value_loss + self.config.learn.aux_bc_weight * cloning, report

    def auxiliary_critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half the mean squared error of the critic, and ``auxiliary_critic_loss`` to report, a scalar."""
        model: Any = self.model
        value = self._corrected(model.compute_critic(batch["obs"])["value"])
        loss = 0.5 * (value - batch["return"]).square().mean()
        return loss, {"auxiliary_critic_loss": loss.detach()}

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives on average, in the passes of both phases."""
        learn = self.config.learn
        return (learn.epoch_per_collect + learn.aux_train_epoch) * super().update_per_collect

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {ROLLOUTS: list(self._rollouts)}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self._rollouts = [cast(Batch, nested.to(one, self.device)) for one in state[ROLLOUTS]]

    def collect_memory(self) -> dict[str, Any]:
        """Return this rank's rollouts of the unfinished phase, and the state of its exploration."""
        memory = super().collect_memory()
        return {**memory, ROLLOUTS: list(self._rollouts)} if self._rollouts else memory

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Restore the state that ``collect_memory`` returned."""
        rest = dict(memory)
        rollouts = rest.pop(ROLLOUTS, [])
        super().load_collect_memory(rest)
        self._rollouts = [cast(Batch, nested.to(one, self.device)) for one in rollouts]

    def _monitor_vars_learn(self) -> list[str]:
        of_phases = ["approx_kl", "clip_fraction", "auxiliary_value_loss", "auxiliary_critic_loss", "cloning_loss"]
        return [*super()._monitor_vars_learn(), *of_phases]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor-critic network."""
        return "ppg", ["lightning_ding.model.ppg"]


def _as_dict(logit: Any) -> Any:
    """Return the output of an actor with lists, as of a multi-discrete action, as dicts."""
    if isinstance(logit, Mapping):
        return {name: _as_dict(one) for name, one in logit.items()}
    return dict(enumerate(logit)) if isinstance(logit, list) else logit


def _as_logit(data: Any) -> Any:
    """Return what :func:`_as_dict` was given."""
    if not isinstance(data, Mapping):
        return data
    found = {name: _as_logit(one) for name, one in data.items()}
    return list(found.values()) if 0 in found else found
