"""PPO with generalised advantages, for discrete, multi-discrete, continuous, hybrid and masked actions.

Papers: Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347); advantages: Schulman et al. 2016, eq. 16
(https://arxiv.org/abs/1506.02438); hybrid actions: Fan et al. 2019 (https://arxiv.org/abs/1903.01344), here with
one critic for both; dual clip: Ye et al. 2020, eq. 5 (https://arxiv.org/abs/1912.09729); initial weights: Andrychowicz
et al. 2021 (https://arxiv.org/abs/2006.05990).

Where this differs: a time limit and the end of the rollout bootstrap from the true next observation. Values are clipped
by a separate distance, not by the clip ratio of the policy, and by default not at all. The critic's scale
(``value_norm``) follows the returns once a round and leaves all values as they are, see ``critic_scale``.
``train_iter`` counts minibatches.

Shapes: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import moved, require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.on_policy import ActorCriticPolicy, RolloutBatch
from lightning_ding.policy.on_policy_options import (
    ActorCriticCollectConfig,
    ActorCriticLearnConfig,
    OnPolicyConfig,
    SDEActorCriticModelConfig,
)
from lightning_ding.policy.state_dependent_exploration import SDECollectConfig, check_sde
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import mean_over_ranks
from lightning_ding.utils.schedules import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class ClippedSurrogateLearnConfig(ActorCriticLearnConfig):
    """Options for updates."""

    clip_ratio: float = 0.2
    """Distance from 1 at which the ratio of new to old probability is clipped, > 0."""
    clip_ratio_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of clip_ratio that changes during the run."""
    dual_clip: float | None = None
    """Largest ratio in the loss of a negative advantage, > 1; None for no limit."""
    value_clip: float | None = None
    """Largest change of a value in a round, > 0, in units of the network's output; None for no limit."""
    value_norm: bool | Literal["symlog", "popart"] = "popart"
    """Train the critic to predict returns divided by their root mean square (True), less their mean and divided by
    their standard deviation (popart), or their symmetric logarithm (symlog). Of the first two, a change leaves all
    values as they are."""
    ppo_param_init: bool = True
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clip_ratio > 0, "learn.clip_ratio", "> 0", self.clip_ratio)
        self.clip_ratio_scheduler.check("learn.clip_ratio_scheduler")
        require(self.dual_clip is None or self.dual_clip > 1, "learn.dual_clip", "> 1 or None", self.dual_clip)
        require(self.value_clip is None or self.value_clip > 0, "learn.value_clip", "> 0 or None", self.value_clip)


@dataclass(frozen=True, kw_only=True)
class PPOLearnConfig(ClippedSurrogateLearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = ClippedSurrogateLearnConfig.MOVED | moved(
        kl_beta="there is no pretrained policy to stay near to; target_kl bounds the step from the last rollout",
        kl_type="there is no pretrained policy to stay near to",
        pretrained_model_path="load a checkpoint with Trainer.fit(ckpt_path=...)",
    )

    epoch_per_collect: int = 10
    """Passes over a rollout, >= 1."""
    target_kl: float | None = None
    """Stop the passes over a rollout once the policy has moved so far on average, in nats, > 0; None never stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epoch_per_collect >= 1, "learn.epoch_per_collect", ">= 1", self.epoch_per_collect)
        require(self.target_kl is None or self.target_kl > 0, "learn.target_kl", "> 0 or None", self.target_kl)
        passes = "None with epoch_per_collect=1: there is no other pass to stop"
        require(self.target_kl is None or self.epoch_per_collect > 1, "learn.target_kl", passes, self.target_kl)


@dataclass(frozen=True, kw_only=True)
class PPOCollectConfig(ActorCriticCollectConfig, SDECollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 1024
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Everything that can be set of PPO."""

    recompute_adv: bool = True
    """Compute values and advantages again before each pass over a rollout."""
    model: SDEActorCriticModelConfig = field(default_factory=SDEActorCriticModelConfig)
    """The network."""
    learn: PPOLearnConfig = field(default_factory=PPOLearnConfig)
    """Options for updates."""
    collect: PPOCollectConfig = field(default_factory=PPOCollectConfig)
    """Options for collecting: the amount and the collector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learn.check_model(self.model)
        check_sde(self.model, self.collect)


@POLICY_REGISTRY.register("ppo")
class PPOPolicy(ActorCriticPolicy[PPOConfig]):
    """PPO; vector, image and dict observations.

    The arguments are those of :class:`Policy`; a ``model`` has the methods ``compute_actor``, ``compute_critic`` and
    ``compute_actor_critic``, as :class:`VAC`.

    Example:
        >>> import torch
        >>> policy = PPOPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PPOConfig
    supports_tensors: ClassVar[bool] = True
    config: PPOConfig

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in several passes; return the metrics of the last update."""
        sequences = self._sequences_of(batch)
        for epoch in range(self.config.learn.epoch_per_collect):
            if epoch == 0:
                data = self._renew_scale(self._learning_data(batch, sequences))
            elif self.config.recompute_adv:
                data = {**self._learning_data(batch, sequences), "value": data["value"]}  # of the policy that acted
            reports = self._make_pass(data)
            if self._has_moved_far([report["approx_kl"] for report in reports]):
                break
        return reports[-1]

    def _policy_loss(self, log_prob: Tensor, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        learn = self.config.learn
        clip_ratio = batch.get("clip_ratio", learn.clip_ratio)
        found = rl.ppo_policy_loss(log_prob, batch["log_prob"], batch["advantage"], clip_ratio, learn.dual_clip)
        return found.loss, {"approx_kl": found.approx_kl, "clip_fraction": found.clip_fraction}

    def _value_loss(self, value: Tensor, batch: RolloutBatch) -> Tensor:
        return rl.ppo_value_loss(value, batch["value"], batch["return"], self.config.learn.value_clip)

    def _has_moved_far(self, divergences: list[Tensor]) -> bool:
        """Return whether the passes over a rollout end early, for the ``approx_kl`` of each update of a pass."""
        limit = self.config.learn.target_kl
        if limit is None:
            return False
        moved = torch.stack(divergences).nanmean()  # a skipped update moved nothing
        return mean_over_ranks(float(moved)) > limit

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives, in all passes."""
        return self.config.learn.epoch_per_collect * super().update_per_collect

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "approx_kl", "clip_fraction"]
