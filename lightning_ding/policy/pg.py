"""REINFORCE: each action weighed by the reward that followed it.

Paper: Williams 1992 (https://doi.org/10.1007/BF00992696), with the reward-to-go of Sutton and Barto 2018, section 13.3.

Where this differs: no gamma^t before the gradient of step t, as everybody leaves it out; returns are standardised in
each minibatch, which stands for a baseline (``return_norm: false`` leaves them as they are). There is no critic, so an
episode that a time limit cut counts as if nothing came behind it. ``train_iter`` counts minibatches.

Shapes: S transitions of a rollout, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.pg_config import PGConfig
from lightning_ding.policy.round import Batch
from lightning_ding.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("pg")
class PGPolicy(OnPolicyPolicy[PGConfig]):
    """REINFORCE; discrete, multi-discrete, continuous and hybrid actions, action masks; any observations.

    Args:
        cfg: A ``PGConfig``, or a mapping to merge over its defaults.
        model: A network ``obs -> {"logit": ...}`` to use instead of the one that the config describes.
        enable_field: Which of learn, collect and eval to initialise; None means all.

    Example:
        >>> policy = PGPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PGConfig
    config: PGConfig

    def _init_eval(self) -> None:
        self._reset_eval()

    def _reset_eval(self, data_id: Sequence[int] | None = None) -> None:
        if data_id is None:  # an evaluation begins: it draws as the one before, and nothing of the exploration's
            self.eval_rng = np.random.default_rng(self.global_rank)

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        if self.config.deterministic_eval:
            return super()._forward_eval(obs)
        return {"action": self._to_env(self._distribution(self._logit(obs), obs).sample(self.eval_rng))}

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        reward, terminated, truncated = (
            sequences.lay_out(rollout[name]) for name in ("reward", "terminated", "truncated")
        )
        is_whole = (terminated | truncated)[sequences.ended].all()
        require(
            bool(is_whole), "rollout", "of whole episodes: use the episode collector", "one that stops before an end"
        )
        nothing = torch.zeros_like(reward)
        to_go = rl.discounted_return(reward, nothing, terminated, sequences.ended, self.config.discount_factor)
        return {"obs": rollout["obs"], "action": rollout["action"], "return": sequences.flatten(to_go)}

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and what to report of it.

        Args:
            batch: ``obs``, ``action`` as it was drawn, ``return`` (B,), perhaps standardised.

        Returns:
            The loss, and detached scalars: ``total_loss``, ``policy_loss``, ``entropy_loss``.
        """
        obs = batch["obs"]
        distribution = self._distribution(self._logit(obs), obs)
        policy_loss = rl.policy_gradient_loss(distribution.log_prob(batch["action"]), batch["return"])
        entropy = distribution.entropy().mean()
        loss = policy_loss - batch.get("entropy_weight", self.config.learn.entropy_weight) * entropy
        report = {"total_loss": loss, "policy_loss": policy_loss, "entropy_loss": entropy}
        return loss, {name: value.detach() for name, value in report.items()}

    def _standardised(self) -> str | None:
        return "return" if self.config.learn.return_norm else None

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "entropy_loss"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor network."""
        return "pg", ["lightning_ding.model.pg"]
