"""PPO with generalised advantages, for discrete, multi-discrete, continuous, hybrid and masked actions.

Papers: Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347); advantages: Schulman et al. 2016, eq. 16
(https://arxiv.org/abs/1506.02438); hybrid actions: Fan et al. 2019 (https://arxiv.org/abs/1903.01344), here with
one critic for both. The loss is in ``clipped_surrogate``.

Where this differs: a time limit and the end of the rollout bootstrap from the true next observation. Values are clipped
by a separate distance, not by the clip ratio of the policy, and by default not at all. The critic's scale
(``value_norm``) follows the returns once a round and leaves all values as they are, see ``actor_critic``.
``train_iter`` counts minibatches.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import moved, require
from lightning_ding.policy.actor_critic import ActorCriticCollectConfig, ActorCriticPolicy, SDEActorCriticModelConfig
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.clipped_surrogate import (
    MONITORED,
    ClippedSurrogateLearnConfig,
    clipped_policy_loss,
    clipped_value_loss,
)
from lightning_ding.policy.on_policy import OnPolicyConfig
from lightning_ding.policy.state_dependent_exploration import SDECollectConfig, check_sde
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import mean_over_ranks


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
    config: PPOConfig

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in several passes; return the metrics of the last update."""
        sequences = rl.time_major(batch["env_id"], batch["episode_id"])
        for epoch in range(self.config.learn.epoch_per_collect):
            if epoch == 0 or self.config.recompute_adv:
                data = self._learning_data(batch, sequences)
            if epoch == 0:
                data = self._renew_scale(data)
                batch["value"] = data["value"]  # which later passes keep, in the new units
            reports = self._make_pass(data)
            if self._has_moved_far([report["approx_kl"] for report in reports]):
                break
        return reports[-1]

    def _policy_loss(self, log_prob: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        return clipped_policy_loss(self.config.learn, log_prob, batch)

    def _value_loss(self, value: Tensor, batch: Mapping[str, Any]) -> Tensor:
        return clipped_value_loss(self.config.learn, value, batch)

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
        return MONITORED
