"""A2C: one pass over a rollout, each action weighed by its generalised advantage.

Papers: Mnih et al. 2016, section 4 and algorithm S3 (https://arxiv.org/abs/1602.01783), here with all envs stepping
together; advantages: Schulman et al. 2016, eq. 16 (https://arxiv.org/abs/1506.02438).

Where this differs: Adam instead of RMSProp; the last step of a rollout is kept and bootstraps from the true next
observation, as a time limit does; gamma is 0.99 by default, as for every algorithm here, not 0.9 as in DI-engine.
``train_iter`` counts minibatches.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.a2c_config import A2CConfig
from lightning_ding.policy.actor_critic import ActorCriticPolicy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("a2c")
class A2CPolicy(ActorCriticPolicy[A2CConfig]):
    """A2C; discrete, multi-discrete, continuous and hybrid actions, action masks; vector, image and dict observations.

    Args:
        cfg: An ``A2CConfig``, or a mapping to merge over its defaults.
        model: A network with ``compute_actor``, ``compute_critic`` and ``compute_actor_critic`` to use instead of the
            one that the config describes.
        enable_field: Which of learn, collect and eval to initialise; None means all.

    Example:
        >>> import torch
        >>> policy = A2CPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = A2CConfig
    config: A2CConfig

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and what to report of it.

        Args:
            batch: ``obs``, ``action`` as it was drawn, ``advantage`` (B,), ``return`` (B,).

        Returns:
            The loss, and detached scalars: ``total_loss``, ``policy_loss``, ``value_loss``, ``entropy_loss``.
        """
        learn, obs = self.config.learn, batch["obs"]
        output = self.model.compute_actor_critic(obs)  # type: ignore[operator]
        distribution = self._distribution(output["logit"], obs)
        policy_loss = rl.policy_gradient_loss(distribution.log_prob(batch["action"]), batch["advantage"])
        value_loss = rl.ppo_value_loss(output["value"], batch["value"], batch["return"])
        entropy = distribution.entropy().mean()
        loss = (
            policy_loss + learn.value_weight * value_loss - batch.get("entropy_weight", learn.entropy_weight) * entropy
        )
        report = {"total_loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy}
        return loss, {name: value.detach() for name, value in report.items()}

    def _standardised(self) -> str | None:
        return "advantage" if self.config.learn.adv_norm else None

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss"]
