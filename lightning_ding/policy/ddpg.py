"""DDPG: a deterministic actor that climbs the critic, exploring with noise.

Papers: Lillicrap et al. 2016 (https://arxiv.org/abs/1509.02971), hybrid actions after Hausknecht and Stone 2016
(https://arxiv.org/abs/1511.04143); twin critics, delay and smoothing, which TD3 has by default: Fujimoto et al. 2018
(https://arxiv.org/abs/1802.09477).

Where this differs: normal noise by default instead of that of Ornstein and Uhlenbeck; no batch normalisation and no
weight decay; the critic sees the action at its first layer; a time limit is no terminal state. The targets move with
the actor, every ``actor_update_freq`` updates. Importance-sampling weights weigh the critics' loss only.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.ddpg_config import DDPGConfig
from lightning_ding.policy.qac import Batch, QACPolicy
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("ddpg")
class DDPGPolicy(QACPolicy[DDPGConfig]):
    """DDPG for continuous actions; vector, image and dict observations.

    Args:
        cfg: A ``DDPGConfig``, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes, see :class:`QACPolicy`; its
            ``compute_actor`` returns ``action``.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> policy = DDPGPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = DDPGConfig

    def _init_collect(self) -> None:
        self.ou_noise = rl.OrnsteinUhlenbeckNoise(self.config.collect.noise_sigma)

    def _forward_collect(self, obs: Any, *, sigma: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return noisy actions of envs 0..B-1; ``sigma`` overrides the size of the noise."""
        action = self.model.compute_actor(obs)["action"]
        return {"action": self.action_bounds.to_env(self._explore(action, sigma))}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_bounds.to_env(self.model.compute_actor(obs)["action"])}

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        batch, learn = self.prepare(batch), self.config.learn
        report = self.minimise(self.critic_loss, batch, 0, learn.grad_clip_norm)
        if (self.progress.train_iter + 1) % learn.actor_update_freq == 0:
            report |= self.minimise(self.actor_loss, batch, 1, learn.grad_clip_norm)
            rl.polyak_update(self.model, self.target_model, learn.target_theta)
        return report

    def _targets(self, batch: Batch) -> Tensor:
        action = self.target_model.compute_actor(batch["next_obs"])["action"]
        if self.config.learn.noise:
            action = rl.smoothed_action(action, batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the first critic's value of the actor's actions (eq. 6), and ``actor_loss`` to report."""
        action = self.model.compute_actor(batch["obs"])["action"]
        loss = -self.model.compute_critic(batch["obs"], action, members=1)["q_value"].mean()
        return loss, {"actor_loss": loss.detach()}

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
