"""The clipped loss of PPO and its options, for rollouts and for replay.

Papers: Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347); dual clip: Ye et al. 2020, eq. 5
(https://arxiv.org/abs/1912.09729); initial weights: Andrychowicz et al. 2021 (https://arxiv.org/abs/2006.05990).

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.actor_critic import ActorCriticLearnConfig
from lightning_ding.utils.schedules import ScheduleConfig

MONITORED = ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"]


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


def clipped_policy_loss(
    learn: ClippedSurrogateLearnConfig, log_prob: Tensor, batch: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy's loss, and its metrics ``approx_kl`` and ``clip_fraction``.

    Args:
        learn: Options of the loss.
        log_prob: log pi(a|s) of the trained policy, shape (B,).
        batch: ``log_prob`` of the policy that acted and ``advantage``, shapes (B,); perhaps a scheduled ``clip_ratio``.
    """
    clip_ratio = batch.get("clip_ratio", learn.clip_ratio)
    found = rl.ppo_policy_loss(log_prob, batch["log_prob"], batch["advantage"], clip_ratio, learn.dual_clip)
    return found.loss, {"approx_kl": found.approx_kl, "clip_fraction": found.clip_fraction}


def clipped_value_loss(learn: ClippedSurrogateLearnConfig, value: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return the loss of the critic's outputs, shape (B,), for ``return`` and the older critic's ``value``."""
    return rl.ppo_value_loss(value, batch["value"], batch["return"], learn.value_clip)
