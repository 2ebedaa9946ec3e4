"""Discrete SAC: an actor over discrete actions that maximises reward and entropy, with twin critics of all actions.

Paper: Christodoulou 2019, eq. 10 to 12 (https://arxiv.org/abs/1910.07207); the other parts are those of ``sac``.
Expectations over actions are exact, so neither targets nor losses need noise.

Where this differs: the temperature's loss takes the entropy from before the actor's step. The default target entropy
counts the legal actions of each state; the paper has no illegal actions. Evaluations take the likeliest action. DI-
engine mixes the policy with the uniform one when it collects, which ``other.eps`` does here; the default is 0, as in
the paper. Its default target entropy is minus the number of actions, which lets the temperature only fall. The
remaining differences are those of SAC.

Shapes: B batch, A actions, E critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.policy.qac import ActorCriticBatch, QACNetworkConfig, QACOtherConfig
from lightning_ding.policy.sac import SACConfig, SACLearnConfig, SACPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import EpsConfig

ENTROPY_SHARE = 0.98  # of the uniform policy's entropy; Christodoulou 2019, section 4


@dataclass(frozen=True, kw_only=True)
class DiscreteSACModelConfig(QACNetworkConfig):
    """The actor and the critics."""

    action_shape: int | None = None
    """Number of actions; None means that it is taken from the env."""
    action_start: int | None = None
    """Smallest action of a Discrete space; None means the env's, or 0 without an env."""


@dataclass(frozen=True, kw_only=True)
class DiscreteSACLearnConfig(SACLearnConfig):
    """Options for updates."""

    target_entropy: float | None = None
    """Entropy of the policy to reach, in nats, in all states; None means 0.98 log(A) in a state with A legal actions.
    Needs auto_alpha."""


@dataclass(frozen=True, kw_only=True)
class DiscreteSACOtherConfig(QACOtherConfig):
    """Exploration in addition to the policy's, and replay."""

    eps: EpsConfig = field(default_factory=lambda: EpsConfig(start=0.0, end=0.0))
    """Probability of a uniformly random action when collecting."""


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(SACConfig):
    """Everything that can be set of discrete SAC."""

    model: DiscreteSACModelConfig = field(default_factory=DiscreteSACModelConfig)  # type: ignore[assignment]
    """The actor and the critics."""
    learn: DiscreteSACLearnConfig = field(default_factory=DiscreteSACLearnConfig)
    """Options for updates."""
    other: DiscreteSACOtherConfig = field(default_factory=DiscreteSACOtherConfig)
    """Exploration in addition to the policy's, and replay."""


@POLICY_REGISTRY.register("discrete_sac")
class DiscreteSACPolicy(SACPolicy):
    """SAC for discrete actions; vector, image and dict observations; action masks.

    A network passed as ``model`` must have the modules ``actor`` and ``critic`` and the methods of
    :class:`DiscreteQAC`.

    Example:
        >>> policy = DiscreteSACPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward(torch.zeros(5, 4))["action"].shape
        torch.Size([5])
    """

    config_class: ClassVar[type[PolicyConfig]] = DiscreteSACConfig
    supports_tensors: ClassVar[bool] = False

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return sampled actions; ``eps`` overrides the schedule."""
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        mask = _mask_of(obs)
        sampled = rl.gumbel_perturbed(self._log_p(obs).cpu().numpy(), 1.0, self.rng)
        action = rl.epsilon_greedy(sampled, epsilon, self.rng, None if mask is None else mask.cpu().numpy())
        return {"action": self.action_start.to_env(torch.from_numpy(action))}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_start.to_env(self._log_p(obs).argmax(1))}

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        q_t = self.target_model.compute_critic(batch["next_obs"])["q_value"]
        value = rl.expected_soft_value(self._log_p(batch["next_obs"]), q_t, self.alpha)
        return torch.addcmul(batch["reward"], batch["discount_t"], value)

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (eq. 12) on a prepared minibatch, and the metrics to report, detached.

        It reports ``actor_loss`` and ``alpha``, scalars, and ``log_prob`` (B,), minus the entropy; with action masks
        also ``max_entropy`` (B,), the logarithm of the number of legal actions.
        """
        log_p, alpha = self._log_p(batch["obs"]), self.alpha
        with torch.no_grad(), self._in_eval_mode.context:
            q = self.model.compute_critic(batch["obs"])["q_value"]
        loss = -rl.expected_soft_value(log_p, q, alpha).mean()
        report = {"actor_loss": loss.detach(), "log_prob": rl.expectation(log_p, log_p).detach(), "alpha": alpha}
        mask = _mask_of(batch["obs"])
        if mask is not None:
            report["max_entropy"] = mask.bool().sum(1).clamp(min=1).to(log_p).log()
        return loss, report

    def _log_p(self, obs: Any) -> Tensor:
        """Return the log probabilities of all actions, shape (B, A); see :class:`Categorical` for illegal ones."""
        return rl.Categorical(self.model.compute_actor(obs)["logit"], _mask_of(obs)).log_p

    def _target_entropy(self, report: dict[str, Tensor]) -> float | Tensor:
        given = self.config.learn.target_entropy
        if given is not None:
            return given
        bound: float | Tensor = report.get("max_entropy", math.log(self._action_size()))
        return ENTROPY_SHARE * bound

    def _action_size(self) -> int:
        return cast(int, self.config.model.action_shape)

    def _normalised(self, action: Any) -> Any:
        return action

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        return {}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor and critics."""
        return "discrete_qac", ["lightning_ding.model.discrete_qac"]

    def _model_cfg(self) -> dict[str, Any]:
        section = super()._model_cfg()
        del section["action_space"]
        return section

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise TypeError(f"discrete_sac needs a Discrete action space, got {action_space}; dqn, ppo and a2c take it")
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, "discrete_sac")}


def _mask_of(obs: Any) -> Tensor | None:
    """Return which actions are legal, shape (B, A), if the observation has a mask."""
    return obs.get("action_mask") if isinstance(obs, Mapping) else None
