"""DDPG: a deterministic actor that climbs the critic, exploring with noise.

Papers: Lillicrap et al. 2016 (https://arxiv.org/abs/1509.02971), hybrid actions after Hausknecht and Stone 2016
(https://arxiv.org/abs/1511.04143); twin critics, delay and smoothing, which TD3 has by default: Fujimoto et al. 2018
(https://arxiv.org/abs/1802.09477).

Where this differs: normal noise by default instead of that of Ornstein and Uhlenbeck; no batch normalisation and no
weight decay; the critic sees the action at its first layer; a time limit is no terminal state. The targets move with
the actor, every ``actor_update_freq`` updates. Importance-sampling weights weigh the critics' loss only.

Of a hybrid action, a choice with arguments, the critic sees the choice as one-hot weights; the actor's are the best
choice with the gradient of the softmax, where Hausknecht and Stone let the critic see the raw outputs. Exploring, the
choice is random with probability epsilon, and the arguments get noise. Where an observation has an ``action_mask``,
actions, targets and the actor's loss know its legal choices only.

Shapes: B batch, A dimensions of an action, K choices, E critics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import ConfigLike
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.ddpg_config import DDPGConfig
from lightning_ding.policy.q_learning_config import ASSUMED_BUDGET
from lightning_ding.policy.qac import Batch, QACPolicy
from lightning_ding.policy.spaces import actor_shapes, obs_shape
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("ddpg")
class DDPGPolicy(QACPolicy[DDPGConfig]):
    """DDPG for continuous and hybrid actions; vector, image and dict observations; masks of hybrid actions' choices.

    Args:
        cfg: A ``DDPGConfig``, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes, see :class:`QACPolicy`; its
            ``compute_actor`` returns ``action``, or ``logit`` and ``action_args``.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> policy = DDPGPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = DDPGConfig

    def __init__(
        self,
        cfg: ConfigLike[DDPGConfig] = None,
        model: nn.Module | None = None,
        enable_field: Sequence[str] | None = None,
    ) -> None:
        super().__init__(cfg, model, enable_field)
        self.epsilon = self.config.other.eps.schedule()

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
        mask = None if _mask_of(obs) is None else obs["action_mask"].cpu().numpy()
        choice = torch.from_numpy(rl.epsilon_greedy(output["logit"].cpu().numpy(), epsilon, self.rng, mask))
        arguments = self.action_bounds.to_env(self._explore(output["action_args"], sigma))
        return {"action": self.action_start.to_env({"action_type": choice, "action_args": arguments})}

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        output = self._actor_output(self.model, obs)
        if "logit" not in output:
            return {"action": self.action_bounds.to_env(output["action"])}
        arguments = self.action_bounds.to_env(output["action_args"])
        return {
            "action": self.action_start.to_env({"action_type": output["logit"].argmax(1), "action_args": arguments})
        }

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        batch, learn = self.prepare(batch), self.config.learn
        report = self._learn_critics(batch)
        if (self.progress.train_iter + 1) % learn.actor_update_freq == 0:
            report |= self.minimise(self.actor_loss, batch, 1, learn.grad_clip)
            rl.polyak_update(self.model, self.target_model, learn.target_theta)
        return report

    def _targets(self, batch: Batch) -> Tensor:
        action = self._actions(self.target_model, batch["next_obs"], batch.get("next_noise"))
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the first critic's value of the actor's actions (eq. 6), and ``actor_loss`` to report."""
        action = self._actions(self.model, batch["obs"])
        loss = -self.model.compute_critic(batch["obs"], action, members=1)["q_value"].mean()
        return loss, {"actor_loss": loss.detach()}

    def _actions(self, model: Any, obs: Any, noise: Tensor | None = None) -> Any:
        """Return the actor's normalised actions as the critics take them, smoothed with ``noise``, shape (B, A)."""
        output = self._actor_output(model, obs)
        action = output["action_args" if "logit" in output else "action"]
        action = action if noise is None else rl.smoothed_action(action, noise)
        if "logit" not in output:
            return action
        return {"action_type": rl.straight_through(output["logit"]), "action_args": action}

    def _actor_output(self, model: Any, obs: Any) -> dict[str, Tensor]:
        """Return what the actor says, the logits of illegal choices at minus infinity."""
        output: dict[str, Tensor] = model.compute_actor(obs)
        return {**output, "logit": rl.masked(output["logit"], _mask_of(obs))} if "logit" in output else output

    def _explore(self, action: Tensor, sigma: float | None) -> Tensor:
        """Return normalised actions, shape (B, A), with noise."""
        collect, shape = self.config.collect, (action.shape[0], action.shape[1])
        if collect.noise_type == "ou":
            noise = self.ou_noise.sample(shape, self.rng, sigma)
        else:
            noise = rl.gaussian_noise(shape, collect.noise_sigma if sigma is None else sigma, self.rng)
        return (action + torch.from_numpy(noise).to(action)).clamp(-1, 1)

    def _reset_collect(self, data_id: Sequence[int] | None = None) -> None:
        self.ou_noise.reset(data_id)

    def collect_memory(self) -> dict[str, Any]:
        """Return the state of the noise that drifts."""
        return self.ou_noise.state_dict()

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Take the state of the noise."""
        self.ou_noise.load_state_dict(dict(memory))

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_critic, self.config.learn.learning_rate_actor

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        learn = self.config.learn
        if not learn.noise:
            return {}
        noise_range = (learn.noise_range.min, learn.noise_range.max)
        return {"next_noise": rl.gaussian_noise(shape, learn.noise_sigma, self.rng, noise_range)}

    def _state_dict_collect(self) -> dict[str, Any]:
        return super()._state_dict_collect() | {"noise": self.ou_noise.state_dict()}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_collect(state)
        if "noise" in state:  # weights that come from a learner hold none
            self.ou_noise.load_state_dict(state["noise"])

    def _action_space_of_model(self) -> str:
        return "hybrid" if isinstance(self.config.model.action_shape, Mapping) else "regression"

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if not isinstance(action_space, spaces.Dict):
            return super()._shapes_of(observation_space, action_space)
        shapes = {"obs_shape": obs_shape(observation_space), **actor_shapes(action_space, type(self).__name__)}
        return {name: shape for name, shape in shapes.items() if name != "action_space"}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        is_hybrid = self._action_space_of_model() == "hybrid"
        return {"eps": self._epsilon_at(command_info["envstep"])} if is_hybrid else {}

    def _epsilon_at(self, env_step: int) -> float:
        return self.epsilon.value(env_step, self.progress.budget or ASSUMED_BUDGET)


def _mask_of(obs: Any) -> Tensor | None:
    """Return which choices are legal, shape (B, K), if the observation says it."""
    return obs.get("action_mask") if isinstance(obs, Mapping) else None
