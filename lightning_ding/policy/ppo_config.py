"""The config of PPO: every field with its meaning, its range and its only default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import moved, require
from lightning_ding.policy.learn_config import ScheduleConfig
from lightning_ding.policy.on_policy_config import (
    ActorCriticModelConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
)


@dataclass(frozen=True)
class PPOLearnConfig(OnPolicyLearnConfig):
    """How updates are made."""

    MOVED: ClassVar[dict[str, str]] = OnPolicyLearnConfig.MOVED | moved(
        kl_beta="there is no pretrained policy to stay near to; target_kl bounds the step from the last rollout",
        kl_type="there is no pretrained policy to stay near to",
        pretrained_model_path="load a checkpoint with Trainer.fit(ckpt_path=...)",
    )

    epoch_per_collect: int = 10
    """Passes over a rollout, >= 1."""
    clip_ratio: float = 0.2
    """How far from 1 the ratio of new to old probability may pay, > 0."""
    clip_ratio_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of clip_ratio that changes as the run goes on."""
    dual_clip: float | None = None
    """Largest ratio that a negative advantage is charged for, > 1; None for none."""
    value_weight: float = 0.5
    """Weight of the critic's loss, >= 0."""
    value_clip: float | None = None
    """How far a value may move in a round, > 0, in units of the network's output; None for any distance."""
    value_norm: bool = True
    """Let the critic predict returns divided by their running root mean square."""
    adv_norm: bool = True
    """Standardise the advantages of each minibatch, over all ranks."""
    target_kl: float | None = None
    """Stop the passes over a rollout once the policy has moved so far on average, in nats, > 0; None never stops."""
    ppo_param_init: bool = True
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs whose envs end by a time limit only."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.epoch_per_collect >= 1, "learn.epoch_per_collect", ">= 1", self.epoch_per_collect)
        require(self.clip_ratio > 0, "learn.clip_ratio", "> 0", self.clip_ratio)
        self.clip_ratio_scheduler.check("learn.clip_ratio_scheduler")
        require(self.dual_clip is None or self.dual_clip > 1, "learn.dual_clip", "> 1 or None", self.dual_clip)
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)
        require(self.value_clip is None or self.value_clip > 0, "learn.value_clip", "> 0 or None", self.value_clip)
        require(self.target_kl is None or self.target_kl > 0, "learn.target_kl", "> 0 or None", self.target_kl)
        passes = "None with epoch_per_collect=1: there is no other pass to stop"
        require(self.target_kl is None or self.epoch_per_collect > 1, "learn.target_kl", passes, self.target_kl)


@dataclass(frozen=True)
class PPOCollectConfig(OnPolicyCollectConfig):
    """How much is collected, and by which collector."""

    n_sample: int | None = 1024
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""
    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Everything that can be set of PPO."""

    recompute_adv: bool = True
    """Compute values and advantages anew before each pass over a rollout."""
    model: ActorCriticModelConfig = field(default_factory=ActorCriticModelConfig)
    """The network."""
    learn: PPOLearnConfig = field(default_factory=PPOLearnConfig)
    """How updates are made."""
    collect: PPOCollectConfig = field(default_factory=PPOCollectConfig)
    """How much is collected, and by which collector."""
