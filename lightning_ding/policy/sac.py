"""SAC: a stochastic actor that seeks reward and entropy, with twin critics and a temperature that is learned.

Papers: Haarnoja et al. 2018 (https://arxiv.org/abs/1801.01290) and 2018b (https://arxiv.org/abs/1812.05905), whose
equations are meant below; twin critics: Fujimoto et al. 2018 (https://arxiv.org/abs/1802.09477).

Where this differs: the temperature's loss takes the log density that the actor's loss has computed, from before the
actor's step; log densities and the target entropy are of normalised actions; a time limit is no terminal state, so the
entropy of the true final observation of a truncated episode counts; importance-sampling weights weigh the critics' loss
only.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.optimisation import make_optimizer
from lightning_ding.policy.qac import Batch, QACPolicy
from lightning_ding.policy.sac_config import SACConfig
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("sac")
class SACPolicy(QACPolicy[SACConfig]):
    """SAC for continuous actions; vector, image and dict observations.

    Args:
        cfg: A ``SACConfig``, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes, see :class:`QACPolicy`; its
            ``compute_actor`` returns ``mu`` and ``log_sigma``.
        enable_field: Which of learn, collect, eval and command to initialise; None means all.

    Example:
        >>> policy = SACPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = SACConfig

    def _init_learn(self) -> None:
        super()._init_learn()
        learn = self.config.learn
        self.temperature = nn.Parameter(
            torch.tensor(math.log(learn.alpha) if self._learns_log else learn.alpha), requires_grad=learn.auto_alpha
        )
        if learn.auto_alpha:
            kind = dataclasses.replace(learn.optimizer, weight_decay=0.0)
            self._optimizer_list.append(make_optimizer(kind, [self.temperature], learn.learning_rate_alpha))

    @property
    def alpha(self) -> Tensor:
        """The temperature, a scalar without gradient."""
        temperature = self.temperature.detach()
        return temperature.exp() if self._learns_log else temperature

    @property
    def _learns_log(self) -> bool:
        return self.config.learn.auto_alpha and self.config.learn.log_space

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        output = self.model.compute_actor(obs)
        noise = torch.from_numpy(self._standard_normal(output["mu"].shape)).to(output["mu"])
        action = torch.addcmul(output["mu"], output["log_sigma"].exp(), noise).tanh()
        return {"action": self.action_bounds.to_env(action)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        return {"action": self.action_bounds.to_env(self.model.compute_actor(obs)["mu"].tanh())}

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        batch, clip = self.prepare(batch), self.config.learn.grad_clip
        report = self._learn_critics(batch)
        report |= self.minimise(self.actor_loss, batch, 1, clip)
        if self.config.learn.auto_alpha:
            report |= self.minimise(self.alpha_loss, report, 2)
            if not self._learns_log:
                self.temperature.data.clamp_(min=0)
        rl.polyak_update(self.model.critic, self.target_model.critic, self.config.learn.target_theta)
        return report

    def _targets(self, batch: Batch) -> Tensor:
        action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.soft_target(batch["reward"], batch["discount_t"], q_t, log_prob, self.alpha)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (eq. 7) on a prepared minibatch, and what to report, detached.

        It reports ``actor_loss`` and ``alpha``, scalars, and ``log_prob`` (B,).
        """
        action, log_prob = self._sample(batch["obs"], batch["noise"])
        q = self.model.compute_critic(batch["obs"], action)["q_value"]
        alpha = self.alpha
        loss = rl.soft_actor_loss(q, log_prob, alpha)
        return loss, {"actor_loss": loss.detach(), "log_prob": log_prob.detach(), "alpha": alpha}

    def alpha_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temperature's loss (eq. 18) of ``log_prob`` (B,), and ``alpha_loss`` to report, detached."""
        target_entropy = self.config.learn.target_entropy
        target_entropy = -float(self._action_size()) if target_entropy is None else target_entropy
        loss = rl.temperature_loss(self.temperature, batch["log_prob"], target_entropy)
        return loss, {"alpha_loss": loss.detach()}

    def _sample(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.compute_actor(obs)
        return rl.squashed_gaussian_sample(output["mu"], output["log_sigma"], noise)

    @property
    def _learning_rates(self) -> tuple[float, float]:
        return self.config.learn.learning_rate_q, self.config.learn.learning_rate_policy

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        return {"noise": self._standard_normal(shape), "next_noise": self._standard_normal(shape)}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"temperature": self.temperature.detach().clone()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.temperature.data.copy_(state["temperature"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "alpha", "alpha_loss", "log_prob"]

    def _action_space_of_model(self) -> str:
        return "reparameterization"
