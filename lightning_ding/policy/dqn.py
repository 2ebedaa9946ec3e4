"""DQN with double Q-learning, a dueling network, n-step returns and prioritised replay.

Papers: Mnih et al. 2015 (https://arxiv.org/abs/1312.5602); double: van Hasselt et al. 2016, eq. 4
(https://arxiv.org/abs/1509.06461); dueling: Wang et al. 2016, eq. 9 (https://arxiv.org/abs/1511.06581); n-step: Hessel
et al. 2018 (https://arxiv.org/abs/1710.02298); priorities: Schaul et al. 2016 (https://arxiv.org/abs/1511.05952);
noise: Fortunato et al. 2018 (https://arxiv.org/abs/1706.10295).

Where this differs: Adam and the Huber loss instead of RMSProp and clipped errors; epsilon is drawn for each env on its
own; a time limit is not treated as termination, so a truncated step bootstraps from its true final observation.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.policy.q_learning import (
    QBatch,
    QLearningConfig,
    QLearningLearnConfig,
    QLearningModelConfig,
    QLearningPolicy,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class DQNModelConfig(QLearningModelConfig):
    """The Q-network: an encoder and a head."""

    action_shape: int | Sequence[int] | None = None
    """Number of actions, or one for each dimension; None means that it is taken from the env."""
    dueling: bool = True
    """Split the head into a state value and advantages."""
    noise: bool = False
    """Explore with noisy layers in the head (NoisyNet-DQN), in addition to epsilon; see ``rainbow``."""
    noise_std: float = 0.5
    """Initial scale of the noise of a layer before division by the square root of its number of inputs, > 0; needs
    noise."""

    def __post_init__(self) -> None:
        require(self.noise_std > 0, "model.noise_std", "> 0", self.noise_std)


@dataclass(frozen=True, kw_only=True)
class DQNLearnConfig(QLearningLearnConfig):
    """Options for updates."""

    default_copy_freq: ClassVar[int] = 250
    update_per_collect: int = 2
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 128
    """Transitions of a minibatch on each rank, >= 1."""
    learning_rate: float = 5e-4
    """Step size, > 0."""
    target_update_freq: int | None = None
    """Updates between two copies into the target network, >= 1; None means 250, or no copies with target_theta."""
    loss: rl.TDLoss = "huber"
    """Loss of the temporal-difference error."""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """Everything that can be set of DQN."""

    nstep: int | None = None
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    model: DQNModelConfig = field(default_factory=DQNModelConfig)
    """The Q-network."""
    learn: DQNLearnConfig = field(default_factory=DQNLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("dqn")
class DQNPolicy(QLearningPolicy[DQNConfig]):
    """DQN for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": action values}``. With the
    option ``model.noise`` it takes an argument ``noisy`` as well, and has a method ``reset_noise(rng)``.

    Example:
        >>> policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = DQNConfig
    supports_tensors: ClassVar[bool] = True

    def loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temporal-difference loss of a minibatch and its metrics; see :meth:`QLearningPolicy.loss`.

        The ``action`` of a multi-discrete space is (B, dimensions); losses and values are averaged over the dimensions.
        """
        targets = self._targets(batch)
        q_tm1 = self._logits(self._output(self.model, batch["obs"]))
        action = self._parts(batch["action"])
        predictions = [rl.take_action_value(q, a) for q, a in zip(q_tm1, action, strict=True)]
        pairs, weight, kind = list(zip(predictions, targets, strict=True)), self._weight(batch), self.config.learn.loss
        loss = _mean([rl.td_loss(prediction, target, weight, kind) for prediction, target in pairs])
        report = {"total_loss": loss.detach()}
        report |= {"q_value": _mean(predictions).detach(), "target_q_value": _mean(targets)}
        if self.config.priority:
            report["priority"] = _mean([rl.td_error(prediction, target) for prediction, target in pairs])
        return loss, report

    @torch.no_grad()
    def _targets(self, batch: QBatch) -> list[Tensor]:
        """Return the target of each dimension of the action, shapes (B,)."""
        reward, discount_t, next_obs = batch["reward"], batch["discount_t"], batch["next_obs"]
        q_t = self._values(batch["target"], next_obs)
        if not self.config.learn.double_q:
            return [rl.q_target(reward, discount_t, q) for q, _ in q_t]
        with self._in_eval_mode:
            selector = self._values(self._output(self.model, next_obs), next_obs)
        return [rl.double_q_target(reward, discount_t, q, s) for (q, _), (s, _) in zip(q_t, selector, strict=True)]

    @staticmethod
    def _parts(action: Tensor) -> Sequence[Tensor]:
        """Return each dimension of actions, shapes (B,), of actions, shape (B,) or (B, dimensions)."""
        return [action] if action.ndim == 1 else action.unbind(1)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "dqn", ["lightning_ding.model.dqn"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, "dqn")}


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)
