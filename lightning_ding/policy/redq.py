"""REDQ: SAC with many updates per env step, and targets from a random subset of an ensemble of critics.

Paper: Chen et al. 2021, algorithm 1 (https://arxiv.org/abs/2101.05982). The target is the smallest value of
``learn.target_critics`` critics that are drawn for each update; the actor maximises the mean of all critics.

DroQ (Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034) replaces the large ensemble by dropout and layer
normalisation in two critics: set ``model.ensemble_num`` to 2, ``model.critic_dropout`` to 0.01 and
``model.critic_layer_norm`` to true. Units are left out in the critics and in the target critics alike, with other
random numbers in the target, in the critics' loss and in the actor's loss. One random number for each item selects the
units; every critic derives a different selection from it.

Where this differs: as in SAC, see ``sac``. The number of critics, ``target_critics``, the updates per env step, the
batch size, the step sizes and ``target_theta`` are those of the paper. The authors' code begins after 5,000 random
steps, with a temperature of 1, and has a target entropy for each env (``mbpo``); here it is after 1,000 steps
(``random_collect_size``), with 0.2 (``alpha``), and minus the dimensions of the action (``target_entropy``).

Shapes: B batch, E critics, M critics of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACLearnConfig, SACPolicy, SoftConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class REDQModelConfig(ContinuousNetworkConfig):
    """The actor and the critics."""

    ensemble_num: int = 10
    """Number of critics, >= 1."""
    critic_layer_norm: bool = False
    """Normalise every hidden layer of the critics before its activation; ``layer_norm`` normalises the actor too."""
    critic_dropout: float = 0.0
    """Probability that a hidden unit of a critic is left out during updates, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ensemble_num >= 1, "model.ensemble_num", ">= 1", self.ensemble_num)
        require(0 <= self.critic_dropout < 1, "model.critic_dropout", "in [0, 1)", self.critic_dropout)
        both = self.critic_layer_norm and self.layer_norm
        require(not both, "model.critic_layer_norm", "False with model.layer_norm", self.critic_layer_norm)


@dataclass(frozen=True, kw_only=True)
class REDQLearnConfig(SACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 20
    """Updates after each collection of n_sample transitions, >= 1."""
    target_critics: int = 2
    """Number of critics, drawn at random for each update, of which the target takes the smallest value, in [1,
    model.ensemble_num]. More of them make the target more pessimistic."""
    actor_update_freq: int = 20
    """Updates of the critics between two of the actor and the temperature, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.actor_update_freq >= 1, "learn.actor_update_freq", ">= 1", self.actor_update_freq)


@dataclass(frozen=True, kw_only=True)
class REDQConfig(SoftConfig):
    """Everything that can be set of REDQ."""

    model: REDQModelConfig = field(default_factory=REDQModelConfig)
    """The actor and the critics."""
    learn: REDQLearnConfig = field(default_factory=REDQLearnConfig)
    """Options for updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, critics = self.learn.target_critics, self.model.ensemble_num
        require(1 <= chosen <= critics, "learn.target_critics", f"in [1, {critics}], up to model.ensemble_num", chosen)


class REDQBatch(ActorCriticBatch, total=False):
    """A minibatch of REDQ, leading axis B."""

    target_critics: Tensor
    """Numbers of the critics of the target, equal in all rows, shape (B, M)."""
    dropout: Tensor
    """Random integers for the dropout of three uses of the critics, shape (B, 3); with ``model.critic_dropout``."""


@POLICY_REGISTRY.register("redq")
class REDQPolicy(SACPolicy):
    """REDQ and DroQ for continuous actions; vector, image and dict observations.

    In addition to SAC's interface, ``compute_critic`` of a network passed as ``model`` takes the indices of critics, an
    integer tensor, as ``members``, and with ``model.critic_dropout`` random integers in [0, 2^32), shape (B,), as
    ``dropout``, from which it chooses the units to leave out.

    Example:
        >>> import torch
        >>> policy = REDQPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["q_value"].shape
        torch.Size([10, 4])
    """

    config_class: ClassVar[type[PolicyConfig]] = REDQConfig
    supports_tensors: ClassVar[bool] = False
    config: REDQConfig

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self._learn_critics(batch)
        if (self.progress.train_iter + 1) % self.config.learn.actor_update_freq == 0:
            report |= self._learn_actor(batch)
        self._update_target("critic")
        return report

    def _targets(self, batch: REDQBatch) -> Tensor:  # type: ignore[override]
        action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        members = batch["target_critics"][0]
        q_t = self._q(self.target_model, batch, "next_obs", action, 0, members)
        return rl.soft_target(batch["reward"], batch["discount_t"], q_t, log_prob, self.alpha)

    def _values_of_taken(self, batch: ActorCriticBatch) -> Tensor:
        return self._q(self.model, batch, "obs", batch["action"], 1)

    def _actor_values(self, batch: ActorCriticBatch, action: Tensor) -> Tensor:
        return self._q(self.model, batch, "obs", action, 2).mean(0, keepdim=True)

    def _q(self, model: Any, batch: Any, obs: str, action: Tensor, use: int, members: Tensor | None = None) -> Tensor:
        """Return the values of actions, shape (E, B) or (M, B), with the random numbers for dropout of this use."""
        dropout = {"dropout": batch["dropout"][:, use]} if "dropout" in batch else {}
        return model.compute_critic(batch[obs], action, members, **dropout)["q_value"]  # type: ignore[no-any-return]

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        """Return noise; ``target_critics`` (..., B, M), equal in all items of a minibatch; ``dropout`` (..., B, 3)."""
        *rounds, batch_size = shape
        number = self.config.learn.target_critics
        order = self.rng.random((*rounds, 1, self.config.model.ensemble_num)).argsort(-1)
        noise = super()._noise(shape) | {"target_critics": order[..., :number].repeat(batch_size, -2)}
        if self.config.model.critic_dropout:
            noise["dropout"] = self.rng.integers(2**32, size=(*rounds, batch_size, 3))
        return noise
