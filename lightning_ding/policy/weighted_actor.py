"""The base of IQL and AWAC: an actor that imitates actions of the data, each weighted by its advantage.

Shapes: B batch, A dimensions of an action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.qac import ActorCriticBatch, QACConfig, QACLearnConfig, QACModelConfig, QACPolicy
from lightning_ding.search_spaces import LogUniform, searched

LOG_SIGMA_RANGE = (-5.0, 2.0)  # Kostrikov et al. 2021 (code)


@dataclass(frozen=True, kw_only=True)
class WeightedActorLearnConfig(QACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    learning_rate_q: float = searched(3e-4, LogUniform(1e-5, 1e-2))
    """Step size of the critics' optimizer, > 0."""
    learning_rate_policy: float = searched(3e-4, LogUniform(1e-5, 1e-2))
    """Step size of the actor's optimizer, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate_q", "learning_rate_policy"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class WeightedActorConfig(QACConfig):
    """The config of IQL and AWAC."""

    model: QACModelConfig = field(default_factory=QACModelConfig)
    """The actor and the critics."""
    learn: WeightedActorLearnConfig = field(default_factory=WeightedActorLearnConfig)
    """Options for updates."""


ConfigT = TypeVar("ConfigT", bound=WeightedActorConfig)


class WeightedActorPolicy(QACPolicy[ConfigT]):
    """A normal distribution over actions, with a mean in [-1, 1], learned by weighted imitation.

    The distribution is not squashed, so actions at the bounds of the box have a finite density. Samples are clipped to
    the box. A network passed as ``model`` returns ``mu`` and ``log_sigma``, whose tanh is the mean.
    """

    def _weight(self, batch: ActorCriticBatch) -> Tensor:
        """Return the weight of each action of the data in the actor's loss, shape (B,), without gradient."""
        raise NotImplementedError

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        mean, log_sigma = self._distribution(obs)
        noise = torch.from_numpy(self._standard_normal(mean.shape)).to(mean)
        return {"action": self.action_bounds.to_env(torch.addcmul(mean, log_sigma.exp(), noise).clamp(-1, 1))}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_bounds.to_env(self._distribution(obs)[0])}

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the weighted log density of the data's actions, and the metrics to report, detached.

        It reports ``actor_loss``, a scalar, and ``weight`` and ``log_prob``, shape (B,).
        """
        with torch.no_grad(), self._in_eval_mode.context:
            weight = self._weight(batch)
        log_prob = rl.gaussian_log_prob(*self._distribution(batch["obs"]), batch["action"])
        loss = -(weight * log_prob).mean()
        return loss, {"actor_loss": loss.detach(), "weight": weight, "log_prob": log_prob.detach()}

    def _distribution(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return means and logarithms of the standard deviations of normalised actions, shapes (B, A)."""
        output = self.model.compute_actor(obs)
        return output["mu"].tanh(), output["log_sigma"].clamp(*LOG_SIGMA_RANGE)

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_q, self.config.learn.learning_rate_policy

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "weight", "log_prob"]

    def _action_space_of_model(self) -> str:
        return "reparameterization"
