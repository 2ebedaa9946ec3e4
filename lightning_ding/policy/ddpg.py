"""DDPG: a deterministic actor that maximises the critic's value, and exploration with noise.

Papers: Lillicrap et al. 2016 (https://arxiv.org/abs/1509.02971), hybrid actions after Hausknecht and Stone 2016
(https://arxiv.org/abs/1511.04143); twin critics, delay and smoothing, which TD3 has by default: Fujimoto et al. 2018
(https://arxiv.org/abs/1802.09477).

Where this differs: normal noise by default instead of that of Ornstein and Uhlenbeck; no batch normalisation and no
weight decay; the critic's first layer gets the action; a time limit is not treated as termination. The targets move
with the actor, every ``actor_update_freq`` updates. Importance-sampling weights weigh the critics' loss only.

A hybrid action is a choice with arguments; the critic gets the choice as a one-hot vector, and the raw outputs in
Hausknecht and Stone. Its gradient at a one-hot vector contains no information about other choices, so the actor
maximises the mean of the values of all choices, weighted with the softmax of its logits. A penalty keeps the logits
small, as Hausknecht and Stone bound theirs: a softmax near 1 for a wrong choice has almost no gradient. For
exploration, the choice is random with probability epsilon, and the arguments get noise. If an observation has an
``action_mask``, only legal choices enter actions, targets and the actor's loss.

Shapes: B batch, A dimensions of an action, K choices, E critics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require, searched
from lightning_ding.policy.base.action_bounds import actor_shapes
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.predict import Way
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.policy.qac import (
    ActorCriticBatch,
    QACConfig,
    QACLearnConfig,
    QACModelConfig,
    QACOtherConfig,
    QACPolicy,
)
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import EpsConfig

LOGIT_PENALTY = 1e-3  # weight of the mean squared logit in the actor's loss; Lowe et al. 2017 (code: openai/maddpg)


@dataclass(frozen=True, kw_only=True)
class NoiseRangeConfig:
    """Interval to which noise is clipped."""

    min: float = -0.5
    """Smallest value, in normalised units, < max."""
    max: float = 0.5
    """Largest value, in normalised units."""

    def __post_init__(self) -> None:
        require(self.min < self.max, "learn.noise_range.min", f"below learn.noise_range.max ({self.max})", self.min)


@dataclass(frozen=True, kw_only=True)
class DDPGModelConfig(QACModelConfig):
    """The actor and the critic."""

    action_start: int | None = None
    """Smallest choice of a hybrid action in the env; None means the env's, or 0 without an env."""
    twin_critic: bool = False
    """Use two critics; the target is the smaller of their values."""
    last_layer_init: float | None = 3e-3
    """Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all other layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_choice = self.action_shape is None or isinstance(self.action_shape, Mapping)
        require(
            has_choice or self.action_start is None, "model.action_start", "None without a choice", self.action_start
        )


@dataclass(frozen=True, kw_only=True)
class DDPGLearnConfig(QACLearnConfig):
    """Options for updates."""

    delays_target: ClassVar[bool] = True
    """Whether the target networks change only after an update of the actor."""

    learning_rate_actor: float = searched(1e-3, "log(1e-5, 1e-2)")
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = searched(1e-3, "log(1e-5, 1e-2)")
    """Step size of the critics' optimizer, > 0."""
    actor_update_freq: int = 1
    """Updates of the critics between two of the actor and the targets, >= 1."""
    noise: bool = False
    """Add clipped normal noise to the target actor's actions."""
    noise_sigma: float = 0.2
    """Standard deviation of that noise, in normalised units, >= 0; needs noise."""
    noise_range: NoiseRangeConfig = field(default_factory=NoiseRangeConfig)
    """Interval to which that noise is clipped; needs noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate_actor", "learning_rate_critic"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        require(self.actor_update_freq >= 1, "learn.actor_update_freq", ">= 1", self.actor_update_freq)
        freq, multiple = self.target_update_freq, f"a multiple of learn.actor_update_freq ({self.actor_update_freq})"
        fits = freq is None or not self.delays_target or freq % self.actor_update_freq == 0
        require(fits, "learn.target_update_freq", multiple, freq)
        require(self.noise_sigma >= 0, "learn.noise_sigma", ">= 0", self.noise_sigma)
        unused = self.noise_sigma == 0.2 and self.noise_range == NoiseRangeConfig()
        got = (self.noise_sigma, self.noise_range)
        require(
            self.noise or unused,
            "learn.noise_sigma and learn.noise_range",
            "left at their defaults without learn.noise",
            got,
        )


@dataclass(frozen=True, kw_only=True)
class DDPGCollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount, the collector and the exploration."""

    noise_type: Literal["gauss", "ou"] = "gauss"
    """gauss is independent normal noise; ou is correlated noise of Ornstein and Uhlenbeck."""
    noise_sigma: float = 0.1
    """Size of the noise that is added to actions, in normalised units, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.noise_sigma >= 0, "collect.noise_sigma", ">= 0", self.noise_sigma)


@dataclass(frozen=True, kw_only=True)
class DDPGOtherConfig(QACOtherConfig):
    """Replay, and the exploration of choices."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The schedule of random choices; needs a hybrid action."""


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(QACConfig):
    """Everything that can be set of DDPG."""

    model: DDPGModelConfig = field(default_factory=DDPGModelConfig)
    """The actor and the critic."""
    learn: DDPGLearnConfig = field(default_factory=DDPGLearnConfig)
    """Options for updates."""
    collect: DDPGCollectConfig = field(default_factory=DDPGCollectConfig)
    """Options for collecting: the amount, the collector and the exploration."""
    other: DDPGOtherConfig = field(default_factory=DDPGOtherConfig)
    """Replay, and the exploration of choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chooses = self.model.action_shape is None or isinstance(self.model.action_shape, Mapping)
        require(
            chooses or self.other.eps == EpsConfig(),
            "other.eps",
            "left at its default without a hybrid action",
            self.other.eps,
        )


@POLICY_REGISTRY.register("ddpg")
class DDPGPolicy(QACPolicy[DDPGConfig]):
    """DDPG for continuous and hybrid actions; vector, image and dict observations; masks of hybrid actions' choices.

    :class:`QACPolicy` describes a network passed as ``model``; its ``compute_actor`` returns ``action``, or for hybrid
    actions ``logit`` and ``action_args``.

    Example:
        >>> policy = DDPGPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = DDPGConfig
    supports_tensors: ClassVar[bool] = True

    def _init_collect(self) -> None:
        self.ou_noise = rl.OrnsteinUhlenbeckNoise(self.config.collect.noise_sigma)

    def _forward_collect(  # type: ignore[override]
        self, obs: Any, *, sigma: float | None = None, eps: float | None = None
    ) -> dict[str, Any]:
        """Return noisy actions of envs 0..B-1; ``sigma`` and ``eps`` override the noise and the random choices."""
        output = self._actor_output(self.model, obs)
        if "logit" not in output:
            return {"action": self.action_bounds.to_env(self._explore(output["action"], sigma))}
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        choice = self._choice(output["logit"], epsilon, mask_of(obs))
        arguments = self.action_bounds.to_env(self._explore(output["action_args"], sigma))
        return {"action": self.action_start.to_env({"action_type": choice, "action_args": arguments})}

    def _choice(self, logit: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
        if self.tensor_envs is not None:
            return rl.epsilon_greedy_tensor(logit, epsilon)
        legal = None if mask is None else mask.cpu().numpy()
        return torch.from_numpy(rl.epsilon_greedy(logit.cpu().numpy(), epsilon, self.rng, legal))

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        output = self._actor_output(self.model, obs)
        if "logit" not in output:
            return {"action": self.action_bounds.to_env(output["action"])}
        arguments = self.action_bounds.to_env(output["action_args"])
        return {
            "action": self.action_start.to_env({"action_type": output["logit"].argmax(1), "action_args": arguments})
        }

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self._learn_critics(batch)
        if (self.progress.train_iter + 1) % self.config.learn.actor_update_freq == 0:
            report |= self.updater.minimise(self.actor_loss, batch, 1)
            self._update_target()
        return report

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        action = self._target_actions(batch["next_obs"], batch.get("next_noise"))
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the first critic's value of the actor's actions (eq. 6), and ``actor_loss`` to report.

        The value of a hybrid action is the mean over its choices; a small penalty keeps their logits small.
        """
        obs, output = batch["obs"], self._actor_output(self.model, batch["obs"])
        if "logit" in output:
            logit = output["logit"]
            value = self._expected_value(obs, logit.softmax(1), output["action_args"])
            penalty = LOGIT_PENALTY * logit.masked_fill(logit.isinf(), 0.0).square().mean()
            loss = penalty - value.mean()
        else:
            loss = -self.model.compute_critic(obs, output["action"], members=1)["q_value"].mean()
        return loss, {"actor_loss": loss.detach()}

    def _expected_value(self, obs: Any, weight: Tensor, arguments: Tensor) -> Tensor:
        """Return the first critic's mean value, shape (B,), over choices drawn with the weights, shape (B, K)."""
        batch_size, choices = weight.shape
        each = nested.apply(lambda entry: entry.repeat_interleave(choices, 0), {"obs": obs, "action_args": arguments})
        choice = torch.arange(choices, device=weight.device).repeat(batch_size)
        action = {"action_type": choice, "action_args": each["action_args"]}
        q: Tensor = self.model.compute_critic(each["obs"], action, members=1)["q_value"]
        return weight.mul(q.view(batch_size, choices)).sum(1)

    def _target_actions(self, obs: Any, noise: Tensor | None) -> Any:
        """Return the target actor's normalised actions, the best choices and arguments with ``noise``, shape (B, A)."""
        output = self._actor_output(self.target_model, obs)
        action = output["action_args" if "logit" in output else "action"]
        action = action if noise is None else rl.smoothed_action(action, noise)
        return {"action_type": output["logit"].argmax(1), "action_args": action} if "logit" in output else action

    def _actor_output(self, model: Any, obs: Any) -> dict[str, Tensor]:
        """Return the output of the actor, with the logits of illegal choices at minus infinity."""
        output: dict[str, Tensor] = model.compute_actor(obs)
        return {**output, "logit": rl.masked(output["logit"], mask_of(obs))} if "logit" in output else output

    def _explore(self, action: Tensor, sigma: float | None) -> Tensor:
        """Return normalised actions, shape (B, A), with noise."""
        collect, shape = self.config.collect, (action.shape[0], action.shape[1])
        if collect.noise_type == "ou":
            noise = self.ou_noise.sample(shape, self.rng, sigma)
        else:
            noise = rl.gaussian_noise(shape, collect.noise_sigma if sigma is None else sigma, self._source)
        return (action + torch.as_tensor(noise).to(action)).clamp(-1, 1)

    def new_memory(self, way: Way) -> dict[str, Any]:
        """Return new Ornstein-Uhlenbeck noise for exploring with it, by the name of its attribute."""
        is_used = way == "collect" and self.config.collect.noise_type == "ou"
        return {"ou_noise": rl.OrnsteinUhlenbeckNoise(self.config.collect.noise_sigma)} if is_used else {}

    def _reset_collect(self, data_id: Sequence[int] | None = None) -> None:
        self.ou_noise.reset(data_id)

    def collect_memory(self) -> dict[str, Any]:
        """Return the state of the Ornstein-Uhlenbeck noise."""
        return self.ou_noise.state_dict()

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Load the state of the Ornstein-Uhlenbeck noise."""
        self.ou_noise.load_state_dict(dict(memory))

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_critic, self.config.learn.learning_rate_actor

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        learn = self.config.learn
        if not learn.noise:
            return {}
        shape, noise_range = [*shape, self._action_size()], (learn.noise_range.min, learn.noise_range.max)
        return {"next_noise": rl.gaussian_noise(shape, learn.noise_sigma, self._source, noise_range)}

    def _state_dict_collect(self) -> dict[str, Any]:
        return super()._state_dict_collect() | {"noise": self.ou_noise.state_dict()}

    def _load_state_dict_collect(self, state: Mapping[str, Any]) -> None:
        super()._load_state_dict_collect(state)
        if "noise" in state:  # a learner's weights contain no state of the noise
            self.ou_noise.load_state_dict(state["noise"])

    def _action_space_of_model(self) -> str:
        return "hybrid" if isinstance(self.config.model.action_shape, Mapping) else "regression"

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if not isinstance(action_space, spaces.Dict):
            return super()._shapes_of(observation_space, action_space)
        shapes = {"obs_shape": obs_shape(observation_space), **actor_shapes(action_space, type(self).__name__)}
        return {name: shape for name, shape in shapes.items() if name != "action_space"}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return super()._get_setting_collect(command_info) if self._action_space_of_model() == "hybrid" else {}


def mask_of(obs: Any) -> Tensor | None:
    """Return which choices are legal, shape (B, K), if the observation has a mask."""
    return obs.get("action_mask") if isinstance(obs, Mapping) else None
