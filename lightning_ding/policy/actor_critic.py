"""The base of on-policy algorithms with a critic: their config, values and advantages.

Shapes: S transitions of a rollout, T steps, N envs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.actor_policy import ActorModelConfig
from lightning_ding.policy.base.policy import ConfigT
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import OnPolicyCollectConfig, OnPolicyLearnConfig, OnPolicyPolicy


@dataclass(frozen=True, kw_only=True)
class ActorCriticModelConfig(ActorModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = True
    """Use one encoder for actor and critic."""
    critic_head_hidden_size: int | None = None
    """Width of the critic head's hidden layers; None means the encoder's last width."""
    critic_head_layer_num: int | None = None
    """Number of hidden layers of the critic's head, >= 0; None means 1 with critic_head_hidden_size, else 0."""


@dataclass(frozen=True, kw_only=True)
class ActorCriticLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    value_weight: float = 0.5
    """Weight of the critic's loss, half its mean squared error, >= 0."""
    adv_norm: bool = True
    """Standardise the advantages of each minibatch, over all ranks."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs of envs that only a time limit ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)


@dataclass(frozen=True, kw_only=True)
class ActorCriticCollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


LARGEST_FORWARD = 4096  # rows of a forward pass without gradient


class ActorCriticPolicy(OnPolicyPolicy[ConfigT]):
    """An on-policy policy that weighs its actions by generalised advantages.

    A sequence that a time limit or the end of the rollout cuts bootstraps from the value of its final next observation;
    a terminated one does not. Values are computed when a rollout is learned from;
    ``value`` is that of the weights at its first pass.
    """

    def _logit(self, obs: Any) -> Any:
        model: Any = self.model
        return model.compute_actor(obs)["logit"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor-critic network."""
        return "vac", ["lightning_ding.model.vac"]

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        value = self._values(rollout["obs"])  # in one pass, not at every step of the envs
        rollout.setdefault("value", value)
        advantage, target = self._advantage(rollout, value, sequences)
        kept = {name: rollout[name] for name in ("obs", "action", "log_prob", "value")}
        return kept | {"advantage": advantage, "return": target}

    def _advantage(self, rollout: Batch, value: Tensor, sequences: rl.Sequences) -> tuple[Tensor, Tensor]:
        """Return advantages and the targets of the critic, both of shape (S,) and in units of its output."""
        config, scale = self.config, self._value_scale()
        terminated = rollout["terminated"]
        if config.learn.ignore_done:
            terminated = torch.zeros_like(terminated)
        table = {"reward": rollout["reward"], "value": value * scale, "terminated": terminated}
        steps = {name: sequences.lay_out(column) for name, column in table.items()}
        next_value = self._next_value(rollout, steps["value"], steps["terminated"], sequences, scale)
        gamma, gae_lambda = config.discount_factor, config.collect.gae_lambda
        advantage = rl.gae(
            steps["reward"], steps["value"], next_value, steps["terminated"], sequences.ended, gamma, gae_lambda
        )
        advantage = sequences.flatten(advantage)
        return advantage, (advantage + table["value"]) / scale

    def _next_value(
        self, rollout: Batch, value: Tensor, terminated: Tensor, sequences: rl.Sequences, scale: Tensor | float
    ) -> Tensor:
        """Return the values of the next observations, shape (T, N), at the end of a sequence of the final one."""
        next_value = torch.cat([value[1:], value[-1:]])
        rows = sequences.flatten(sequences.ended & ~terminated)
        flat = sequences.flatten(next_value)
        flat[rows] = self._values(nested.index(rollout["next_obs"], rows)) * scale
        return sequences.lay_out(flat)

    def _values(self, obs: Any) -> Tensor:
        parts = nested.split(obs, LARGEST_FORWARD) or [obs]  # none where every sequence ends with a terminal state
        return torch.cat([self.model.compute_critic(part)["value"] for part in parts])  # type: ignore[operator]

    def _standardised(self) -> str | None:
        return "advantage" if self.config.learn.adv_norm else None

    def _value_scale(self) -> Tensor | float:
        """Return the factor that turns the critic's output into a return."""
        return 1.0
