"""SAC: a stochastic actor that maximises reward and entropy, with twin critics and a temperature that is learned.

Papers: Haarnoja et al. 2018 (https://arxiv.org/abs/1801.01290) and 2018b (https://arxiv.org/abs/1812.05905), whose
equations are meant below; twin critics: Fujimoto et al. 2018 (https://arxiv.org/abs/1802.09477).

Where this differs: the temperature's loss takes the log density that the actor's loss has computed, from before the
actor's step; log densities and the target entropy are of normalised actions; a time limit is not treated as
termination, so the entropy of the true final observation of a truncated episode counts; importance-sampling weights
weigh the critics' loss only. The output layers begin near 0 (``model.last_layer_init``, as in DDPG), so the first
actions are those of a standard normal distribution before squashing.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal  # noqa: F401 - the command line evaluates the types of all fields of a section here

import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require, searched
from lightning_ding.model.residual import LayersConfig  # noqa: F401 - as Literal
from lightning_ding.policy.base.config import NO_CLIP, WITHOUT_SDE, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.qac import (
    ActorCriticBatch,
    ContinuousNetworkConfig,
    QACConfig,
    QACLearnConfig,
    QACModelConfig,
    QACPolicy,
)
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.policy.state_dependent_exploration import (
    SDECollectConfig,
    SquashedSDEModelConfig,
    check_sde,
    explores_by_state,
    uses_sde,
    with_noise,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class SACModelConfig(SquashedSDEModelConfig, QACModelConfig):
    """The actor and the critics."""

    MOVED: ClassVar[dict[str, str]] = {
        key: hint for key, hint in QACModelConfig.MOVED.items() if key not in WITHOUT_SDE
    }

    last_layer_init: float | None = 3e-3
    """Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all other layers."""


@dataclass(frozen=True, kw_only=True)
class SACLearnConfig(QACLearnConfig):
    """Options for updates."""

    learning_rate_q: float = searched(3e-4, "log(1e-5, 1e-2)")
    """Step size of the critics' optimizer, > 0."""
    learning_rate_policy: float = searched(3e-4, "log(1e-5, 1e-2)")
    """Step size of the actor's optimizer, > 0."""
    learning_rate_alpha: float = 3e-4
    """Step size of the temperature's optimizer, > 0; needs auto_alpha."""
    alpha: float = 0.2
    """Temperature, or the one to start from with auto_alpha, >= 0."""
    auto_alpha: bool = True
    """Learn the temperature, so that the entropy comes to target_entropy."""
    log_space: bool = True
    """Learn the logarithm of the temperature; needs auto_alpha."""
    target_entropy: float | None = None
    """Entropy of the normalised action to reach, in nats; None means minus its dimensions. Needs auto_alpha."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        require(self.alpha >= 0, "learn.alpha", ">= 0", self.alpha)
        start = "> 0 to learn its logarithm"
        require(self.alpha > 0 or not (self.auto_alpha and self.log_space), "learn.alpha", start, self.alpha)
        got = (self.learning_rate_alpha, self.log_space, self.target_entropy)
        names = "learn.learning_rate_alpha, learn.log_space and learn.target_entropy"
        require(
            self.auto_alpha or got == (3e-4, True, None), names, "left at their defaults without learn.auto_alpha", got
        )


@dataclass(frozen=True, kw_only=True)
class SACCollectConfig(ReplayCollectConfig, SDECollectConfig):
    """Options for collecting: the amount, the collector and the exploration."""


@dataclass(frozen=True, kw_only=True)
class SoftConfig(QACConfig):
    """The config of SAC and its relatives."""

    model: ContinuousNetworkConfig = field(default_factory=ContinuousNetworkConfig)
    """The actor and the critics."""
    learn: SACLearnConfig = field(default_factory=SACLearnConfig)
    """Options for updates."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig):
    """Everything that can be set of SAC."""

    model: SACModelConfig = field(default_factory=SACModelConfig)
    """The actor and the critics."""
    collect: SACCollectConfig = field(default_factory=SACCollectConfig)
    """Options for collecting: the amount, the collector and the exploration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sde(self.model, self.collect)


@POLICY_REGISTRY.register("sac")
@explores_by_state
class SACPolicy(QACPolicy[SoftConfig]):
    """SAC for continuous actions; vector, image and dict observations.

    :class:`QACPolicy` describes a network passed as ``model``; its ``compute_actor`` returns ``mu`` and ``log_sigma``,
    and with ``model.use_sde`` also ``features`` and ``std``, see :class:`StateDependentSigma`.

    Example:
        >>> policy = SACPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = SACConfig
    supports_tensors: ClassVar[bool] = True

    def _init_learn(self) -> None:
        super()._init_learn()
        learn = self.config.learn
        start = math.log(learn.alpha) if self._learns_log else learn.alpha
        self.temperature = nn.Parameter(torch.full(self._temperature_shape(), start), requires_grad=learn.auto_alpha)
        if learn.auto_alpha:
            kind = dataclasses.replace(learn.optimizer, weight_decay=0.0)
            self.updater.optimizers.append(make_optimizer(kind, [self.temperature], learn.learning_rate_alpha))

    def _temperature_shape(self) -> tuple[int, ...]:
        """Return the shape of the temperature, () for one that all actions share."""
        return ()

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient, a scalar unless :meth:`_temperature_shape` is another."""
        temperature = self.temperature.detach()
        return temperature.exp() if self._learns_log else temperature

    @property
    def _learns_log(self) -> bool:
        return self.config.learn.auto_alpha and self.config.learn.log_space

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        output = self.model.compute_actor(obs)
        if uses_sde(self):
            return {"action": self.action_bounds.to_env(with_noise(self, output).tanh())}
        noise = torch.as_tensor(self._standard_normal(output["mu"].shape)).to(output["mu"])
        action = torch.addcmul(output["mu"], output["log_sigma"].exp(), noise).tanh()
        return {"action": self.action_bounds.to_env(action)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_bounds.to_env(self.model.compute_actor(obs)["mu"].tanh())}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self._learn_critics(batch) | self._learn_actor(batch)
        self._update_target("critic")
        return report

    def _learn_actor(self, batch: ActorCriticBatch) -> dict[str, Any]:
        """Update the actor and the temperature once on a prepared minibatch."""
        report = self.updater.minimise(self.actor_loss, batch, 1)
        if self.config.learn.auto_alpha:
            report |= self.updater.minimise(self.alpha_loss, report, 2, NO_CLIP)
            if not self._learns_log:
                self.temperature.data.clamp_(min=0)
        return report

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.soft_target(batch["reward"], batch["discount_t"], q_t, log_prob, self.alpha)

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (eq. 7) on a prepared minibatch, and the metrics to report, detached.

        It reports ``actor_loss`` and ``alpha``, scalars, and ``log_prob`` (B,).
        """
        return self._loss_of_actions(self.model.compute_actor(batch["obs"]), batch)

    def _loss_of_actions(self, output: dict[str, Tensor], batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss for its output, and the metrics to report."""
        action, log_prob = rl.squashed_gaussian_sample(output["mu"], output["log_sigma"], batch["noise"])
        q, alpha = self._actor_values(batch, action), self.alpha
        loss = rl.soft_actor_loss(q, log_prob, alpha)
        return loss, {"actor_loss": loss.detach(), "log_prob": log_prob.detach(), "alpha": alpha}

    def _actor_values(self, batch: ActorCriticBatch, action: Tensor) -> Tensor:
        """Return values of actions, shape (E, B); the actor maximises the smallest value of each action."""
        return self.model.compute_critic(batch["obs"], action)["q_value"]  # type: ignore[no-any-return]

    def alpha_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temperature's loss (eq. 18) for the report of :meth:`actor_loss`, and ``alpha_loss`` to report."""
        loss = rl.temperature_loss(self.temperature, batch["log_prob"], self._target_entropy(batch))
        return loss, {"alpha_loss": loss.detach()}

    def _target_entropy(self, report: dict[str, Tensor]) -> float | Tensor:
        """Return the entropy to reach in nats, for all states or shape (B,), from the report of the actor's loss."""
        given = self.config.learn.target_entropy
        return -float(self._action_size()) if given is None else given

    def _sample(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.compute_actor(obs)
        return rl.squashed_gaussian_sample(output["mu"], output["log_sigma"], noise)

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_q, self.config.learn.learning_rate_policy

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        return {name: self._standard_normal([*shape, self._action_size()]) for name in ("noise", "next_noise")}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"temperature": self.temperature.detach().clone()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.temperature.data.copy_(state["temperature"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "alpha", "alpha_loss", "log_prob"]

    def _action_space_of_model(self) -> str:
        return "reparameterization"
