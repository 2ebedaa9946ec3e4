"""REINFORCE: each action weighed by the reward that followed it.

Paper: Williams 1992 (https://doi.org/10.1007/BF00992696), with the reward-to-go of Sutton and Barto 2018, section 13.3.

Where this differs: no gamma^t before the gradient of step t, as is usual; returns are standardised in
each minibatch, which stands for a baseline (``return_norm: false`` leaves them as they are). There is no critic, so an
episode that a time limit cut counts as if it had ended there. ``train_iter`` counts minibatches.

Shapes: S transitions of a rollout, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import moved, require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.on_policy_options import (
    ActorModelConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
)
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.search_spaces import searched
from lightning_ding.worker.config import CollectorConfig


@dataclass(frozen=True, kw_only=True)
class PGLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = OnPolicyLearnConfig.MOVED | moved(
        ignore_done="there is no critic, so nothing is known about returns after an end",
    )

    batch_size: int | None = searched(None, None)
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    learning_rate: float = 1e-3
    """Step size at the start, > 0."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    grad_clip_norm: float | None = 5.0
    """Largest norm of the gradient, > 0; None for no limit."""
    return_norm: bool = True
    """Standardise the returns of each minibatch, over all ranks, as a baseline does; a single one stays as it is."""


@dataclass(frozen=True, kw_only=True)
class PGCollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_episode: int | None = 8
    """Episodes of a rollout on each rank, >= 1; returns need whole ones."""
    collector: CollectorConfig = field(default_factory=lambda: CollectorConfig(type="episode"))
    """The collector of whole episodes."""


@dataclass(frozen=True, kw_only=True)
class PGConfig(OnPolicyConfig):
    """Everything that can be set of REINFORCE."""

    deterministic_eval: bool = True
    """Evaluate the most probable actions; else draw them, the same way in each evaluation."""
    model: ActorModelConfig = field(default_factory=ActorModelConfig)
    """The network."""
    learn: PGLearnConfig = field(default_factory=PGLearnConfig)
    """Options for updates."""
    collect: PGCollectConfig = field(default_factory=PGCollectConfig)
    """Options for collecting: the amount and the collector."""


@POLICY_REGISTRY.register("pg")
class PGPolicy(OnPolicyPolicy[PGConfig]):
    """REINFORCE; discrete, multi-discrete, continuous and hybrid actions, action masks; any observations.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": ...}``, as :class:`PG`.

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
        if data_id is None:  # every evaluation draws the same numbers, from its own generator
            self.eval_rng = np.random.default_rng(self.global_rank)

    _forward_greedy = OnPolicyPolicy._forward_eval  # what an exported graph does

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        if self.config.deterministic_eval:
            return self._forward_greedy(obs)
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
        kept = {"obs": rollout["obs"], "action": rollout["action"], "return": sequences.flatten(to_go)}
        return self._added_columns(rollout) | kept

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and the metrics to report.

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
