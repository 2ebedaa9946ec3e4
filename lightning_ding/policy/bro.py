"""BRO: SAC with large regularised critics that predict quantiles, and a second, optimistic actor that explores.

Paper: Nauman et al. 2024, "Bigger, Regularized, Optimistic" (https://arxiv.org/abs/2405.16158). The critics are BroNets
(``model.critic_layers``) with decaying weights (``learn.optimizer``), and are learned with 10 updates per env step and
resets of all that is learned (``learn.reset_at``). Targets take the mean of the critics, not the smallest value.

The explorer collects. Its mean is the actor's plus a learned shift, and its standard deviation the actor's times
``learn.std_multiplier``. It maximises the mean of the critics plus ``optimism`` times their spread, minus ``kl_weight``
times its divergence from the actor, for which the standard deviation is not multiplied. Both weights are learned: the
first one grows while the divergence per dimension is below ``kl_target``, the second one while it is above. Targets,
evaluations and the temperature use the actor.

BRO (Fast) of the paper has ``update_per_collect`` 2, and its code then resets only once, with ``reset_at`` [30_000].

Where this differs from the authors' code: as in SAC, see ``sac``. The loss of a critic is the mean over its quantiles,
not their sum. The logarithm of the actor's standard deviation is clamped to [-20, 2], not squashed to [-10, 2]. The
optimizers of the temperature and of both weights have the ``betas`` of the others, not (0.5, 0.999). Acting is random
for the first 1,000 steps, not 2,500 (``random_collect_size``). Resets are counted in updates, not in env steps, so
``reset_at`` has to follow ``update_per_collect``. With more than two critics, their spread is the mean absolute
deviation.

Shapes: B batch, A dimensions of an action, E critics, N quantiles.
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
from lightning_ding.config import require
from lightning_ding.model.residual import LayersConfig, constrained_layers
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig, make_optimizer
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACLearnConfig, SoftConfig
from lightning_ding.policy.tqc import TQCPolicy
from lightning_ding.registry import POLICY_REGISTRY

LOG_WEIGHT_RANGE = (-10.0, 7.5)  # of the logarithms of both weights, which approach the ends without reaching them
STEPS_OF_RESETS = (15_000, 50_000, 250_000, 500_000, 750_000, 1_000_000, 1_500_000, 2_000_000)  # env steps


def _bronet() -> LayersConfig:
    return LayersConfig(type="bronet")


@dataclass(frozen=True, kw_only=True)
class BROModelConfig(ContinuousNetworkConfig):
    """The actor, the explorer, which has layers like the actor's, and the critics."""

    ensemble_num: int = 2
    """Number of critics, >= 1; the target is their mean."""
    num_quantiles: int = 100
    """Number of quantiles of the return that each critic predicts, >= 1."""
    critic_head_hidden_size: int = 512
    """Width of the critics' hidden layers, >= 1."""
    critic_head_layer_num: int = 2
    """Number of residual blocks of the critics, >= 0."""
    actor_layers: LayersConfig = field(default_factory=_bronet)
    """Kind and normalisation of the actor's and of the explorer's layers; not ``simba_v2``."""
    critic_layers: LayersConfig = field(default_factory=_bronet)
    """Kind and normalisation of the critics' layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ensemble_num", "num_quantiles"):
            require(getattr(self, name) >= 1, f"model.{name}", ">= 1", getattr(self, name))
        kind = self.actor_layers.type
        require(kind != "simba_v2", "model.actor_layers.type", "mlp, simba or bronet, for the explorer", kind)
        weights = self.actor_layers.weights
        allowed = "unit, spectral or None, for the explorer"
        require(weights != "unit_all", "model.actor_layers.weights", allowed, weights)


@dataclass(frozen=True, kw_only=True)
class BROLearnConfig(SACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 128
    """Transitions of a minibatch on each rank, >= 1."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(type="adamw", weight_decay=1e-4))
    """The optimizers of the critics, the actor and the explorer; temperatures and weights do not decay."""
    reset_at: Sequence[int] = tuple(10 * step for step in STEPS_OF_RESETS)
    """Numbers of updates after which there is one more reset, each >= 1; by default those of the authors' code, for 10
    updates per env step. Empty for a network that is passed as model."""
    alpha: float = 1.0
    """Temperature, or the one to start from with auto_alpha, >= 0."""
    target_entropy: float | None = None
    """Entropy of the normalised action to reach, in nats; None means minus half its dimensions. Needs auto_alpha."""
    kappa: float = 1.0
    """Error up to which the quantile Huber loss is quadratic, > 0."""
    pessimism: float = 0.0
    """Weight of the critics' spread, >= 0, that targets and the actor subtract from their mean; 1 takes the smaller
    quantile of two critics."""
    std_multiplier: float = 0.75
    """Standard deviation of the explorer, in those of the actor, > 0."""
    optimism: float = 1.0
    """Initial weight of the critics' spread in the explorer's objective, in (e^-10, e^7.5)."""
    kl_weight: float = 0.25
    """Initial weight of the divergence from the actor in the explorer's objective, in (e^-10, e^7.5)."""
    kl_target: float = 0.05
    """Divergence per dimension of the action, in nats, that both weights are learned to reach, >= 0."""
    learning_rate_weights: float = 3e-5
    """Step size of the optimizer of both weights, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kappa", "std_multiplier", "learning_rate_weights"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        for name in ("pessimism", "kl_target"):
            require(getattr(self, name) >= 0, f"learn.{name}", ">= 0", getattr(self, name))
        low, high = map(math.exp, LOG_WEIGHT_RANGE)
        for name in ("optimism", "kl_weight"):
            require(low < getattr(self, name) < high, f"learn.{name}", "in (e^-10, e^7.5)", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class BROConfig(SoftConfig):
    """Everything that can be set of BRO; the defaults are those of the authors' code, except as said above."""

    model: BROModelConfig = field(default_factory=BROModelConfig)
    """The actor, the explorer and the critics."""
    learn: BROLearnConfig = field(default_factory=BROLearnConfig)
    """Options for updates."""


class BROBatch(ActorCriticBatch, total=False):
    """A minibatch of BRO, leading axis B."""

    explorer_noise: Tensor
    """Standard normal noise of the explorer's actions at ``obs``, shape (B, A)."""


@POLICY_REGISTRY.register("bro")
class BROPolicy(TQCPolicy):
    """BRO for continuous actions; vector, image and dict observations.

    In addition to TQC's interface, a network passed as ``model`` has ``compute_explorer(obs, mu)``, which returns the
    explorer's means before squashing, (B, A), for the actor's, and the module ``explorer`` with its parameters.

    Example:
        >>> policy = BROPolicy({"model": {"obs_shape": 3, "action_shape": 1, "critic_head_hidden_size": 64}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["quantile"].shape
        torch.Size([2, 4, 100])
    """

    config_class: ClassVar[type[PolicyConfig]] = BROConfig
    config: BROConfig  # type: ignore[assignment]
    parts_of_model: ClassVar[tuple[str, ...]] = (*TQCPolicy.parts_of_model, "compute_explorer", "explorer")

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, optimizers = self.config.learn, self.updater.optimizers
        self._explorer_index, explorer = len(optimizers), self.model.explorer
        self.updater.constrained[self._explorer_index] = constrained_layers(explorer)
        self.raw_weights = nn.Parameter(torch.tensor([_to_raw(learn.optimism), _to_raw(learn.kl_weight)]))
        optimizers.append(make_optimizer(learn.optimizer, explorer.parameters(), learn.learning_rate_policy))
        kind = dataclasses.replace(learn.optimizer, weight_decay=0.0)
        optimizers.append(make_optimizer(kind, [self.raw_weights], learn.learning_rate_weights))

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        output = self.model.compute_actor(obs)
        mu = self.model.compute_explorer(obs, output["mu"])
        noise = torch.as_tensor(self._standard_normal(mu.shape)).to(mu)
        sigma = self.config.learn.std_multiplier * output["log_sigma"].exp()
        return {"action": self.action_bounds.to_env(torch.addcmul(mu, sigma, noise).tanh())}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self._learn_critics(batch) | self._learn_actor(batch)
        report |= self.updater.minimise(self.explorer_loss, batch, self._explorer_index)
        report |= self.updater.minimise(self.weights_loss, report, self._explorer_index + 1, NO_CLIP)
        self._update_target("critic")
        return report

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        """Return samples of the target distribution, ascending, shape (B, N)."""
        action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        quantile_t = self.target_model.compute_critic(batch["next_obs"], action)["quantile"]
        soft = rl.spread_bound(quantile_t, -self.config.learn.pessimism) - self.alpha * log_prob[:, None]
        return rl.quantile_target(batch["reward"], batch["discount_t"], soft.sort(1).values)

    def _actor_values(self, batch: ActorCriticBatch, action: Tensor) -> Tensor:
        return self._bound(batch, action, -self.config.learn.pessimism)[None]

    def explorer_loss(self, batch: BROBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the explorer's loss on a prepared minibatch, and the metrics to report, detached.

        It reports ``explorer_loss``, the divergence ``kl`` from the actor per dimension of the action, and both
        weights, ``optimism`` and ``kl_weight``, scalars.
        """
        with torch.no_grad(), self._in_eval_mode.context:
            output = self.model.compute_actor(batch["obs"])
        sigma, (optimism, kl_weight) = output["log_sigma"].exp(), self.weights
        mu = self.model.compute_explorer(batch["obs"], output["mu"])
        action = torch.addcmul(mu, self.config.learn.std_multiplier * sigma, batch["explorer_noise"]).tanh()
        kl = rl.shifted_gaussian_kl(mu - output["mu"], sigma).mean()
        loss = kl_weight * kl - self._bound(batch, action, optimism).mean()
        per_dimension = kl.detach() / sigma.shape[1]
        report = {"explorer_loss": loss.detach(), "kl": per_dimension, "optimism": optimism, "kl_weight": kl_weight}
        return loss, report

    def weights_loss(self, report: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of ``optimism`` and ``kl_weight`` for the report of :meth:`explorer_loss`, and no metrics."""
        optimism, kl_weight = _from_raw(self.raw_weights)
        return (optimism - kl_weight) * (report["kl"] - self.config.learn.kl_target), {}

    @property
    def weights(self) -> Tensor:
        """``optimism`` and ``kl_weight``, without gradient, shape (2,)."""
        return _from_raw(self.raw_weights.detach())

    def _bound(self, batch: ActorCriticBatch, action: Tensor, weight: float | Tensor) -> Tensor:
        """Return the mean over quantiles of the critics' mean plus ``weight`` times their spread, shape (B,)."""
        quantile = self.model.compute_critic(batch["obs"], action)["quantile"]
        return rl.spread_bound(quantile, weight).mean(1)

    def _target_entropy(self, report: dict[str, Tensor]) -> float | Tensor:
        given = self.config.learn.target_entropy
        return -self._action_size() / 2 if given is None else given

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        return super()._noise(shape) | {"explorer_noise": self._standard_normal([*shape, self._action_size()])}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor, an explorer and critics."""
        return "optimistic_qac", ["lightning_ding.model.bro"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"raw_weights": self.raw_weights.detach().clone()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.raw_weights.data.copy_(state["raw_weights"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "explorer_loss", "kl", "optimism", "kl_weight"]


def _from_raw(raw: Tensor) -> Tensor:
    """Return weights, whose logarithms lie in ``LOG_WEIGHT_RANGE``, of unbounded numbers of the same shape."""
    low, high = LOG_WEIGHT_RANGE
    return (low + (high - low) / 2 * (1 + raw.tanh())).exp()


def _to_raw(weight: float) -> float:
    """Return the number for which :func:`_from_raw` returns a weight."""
    low, high = LOG_WEIGHT_RANGE
    return math.atanh(2 * (math.log(weight) - low) / (high - low) - 1)
