"""MADDPG: an actor for each agent that sees what the agent sees, and a critic for each that knows the actions of all.

Paper: Lowe et al. 2017, algorithm 1 (https://arxiv.org/abs/1706.02275). The gradient of an actor is that of its own
critic, with the actions of the other agents from the replay buffer (eq. 5). Discrete actions are samples by the
Gumbel-max trick; their gradient is that of the softmax (straight-through; Jang et al. 2017,
https://arxiv.org/abs/1611.01144), and a penalty keeps the logits small, as in the authors' code. Twin critics, smoothed
target actions and a delay make it MATD3 (Ackermann et al. 2019, https://arxiv.org/abs/1910.01465).

Where this differs: agents share one actor and one critic by default, and get their number as input; targets are
those of all agents' current target actors, no approximated policies of others and no ensembles of policies. Discrete
actions are samples in the env and for the critics, where the authors' code has soft vectors. Agents that have left the
episode have the value 0. With ``model.critic_input: local`` agents learn independently, each as in DDPG. The
other differences are those of DDPG.

Shapes: B batch, N agents, A dimensions or actions of an agent, E critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model.teams.agents import one_hot
from lightning_ding.model.teams.team_qac import with_own
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.ddpg import LOGIT_PENALTY, DDPGConfig, DDPGPolicy
from lightning_ding.policy.teams.actor_critic import (
    TeamQACModelConfig,
    TeamQACPolicy,
    gumbel,
    living_mean,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class MADDPGConfig(DDPGConfig):
    """Everything that can be set of MADDPG."""

    model: TeamQACModelConfig = field(default_factory=TeamQACModelConfig)  # type: ignore[assignment]
    """The actors and the critics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_discrete = self.model.action_space == "discrete"
        require(not (is_discrete and self.learn.noise), "learn.noise", "False with discrete actions", self.learn.noise)


@POLICY_REGISTRY.register("maddpg")
class MADDPGPolicy(TeamQACPolicy[DDPGConfig], DDPGPolicy):
    """MADDPG for teams with continuous or discrete actions; rewards of each agent or of the team; action masks.

    A network passed as ``model`` must have the modules ``actor`` and ``critic`` and the methods of :class:`TeamQAC`.

    Example:
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 2}
        >>> policy = MADDPGPolicy({"model": {**shapes, "action_space": "continuous"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(5, 3, 4)})["action"].shape
        torch.Size([5, 3, 2])
    """

    config_class: ClassVar[type[PolicyConfig]] = MADDPGConfig

    def _forward_collect(  # type: ignore[override]
        self, obs: Mapping[str, Tensor], *, sigma: float | None = None
    ) -> dict[str, Any]:
        """Return noisy actions of envs 0..B-1, or sampled ones if they are discrete; ``sigma`` overrides the noise."""
        if self.is_discrete:
            return {"action": self.action_start.to_env(self._sampled(self._logit(self.model, obs)))}
        action = self.model.compute_actor(obs)["action"]
        return {"action": self._to_env(self._explore(action.flatten(1), sigma).view(action.shape))}

    def _forward_eval(self, obs: Mapping[str, Tensor]) -> dict[str, Any]:
        if self.is_discrete:
            return {"action": self.action_start.to_env(self._logit(self.model, obs).argmax(-1))}
        return {"action": self._to_env(self.model.compute_actor(obs)["action"])}

    def _target_actions(self, obs: Mapping[str, Tensor], noise: Tensor | None) -> Tensor:
        """Return the target actors' actions of all agents, shape (B, N, A), with ``noise`` of the same shape."""
        if not self.is_discrete:
            action: Tensor = super()._target_actions(obs, noise)
            return action
        assert noise is not None
        logit = self._logit(self.target_model, obs)
        return one_hot((logit + gumbel(noise)).argmax(-1), logit.shape[-1])

    def actor_loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the mean value that each agent's first critic has of its action (eq. 5), and ``actor_loss``.

        The other agents' actions are those taken. A small penalty keeps the logits of discrete actions small.
        """
        obs, living, penalty = batch["obs"], batch["alive"], torch.zeros(())
        if self.is_discrete:
            logit = self._logit(self.model, obs)
            own = straight_through(logit, batch["noise"])
            squares = logit.masked_fill(logit.isinf(), 0.0).square().mean(-1)
            penalty = LOGIT_PENALTY * living_mean(squares, living)
        else:
            own = self.model.compute_actor(obs)["action"]
        q = self.model.compute_critic(obs, with_own(own, batch["action"]), members=1)["q_value"]
        loss = penalty.to(q) - living_mean(q[0], living)
        return loss, {"actor_loss": loss.detach()}

    def _action_space_of_model(self) -> str:
        return "discrete" if self.is_discrete else "regression"


def straight_through(logit: Tensor, uniform: Tensor) -> Tensor:
    """Return sampled one-hot vectors whose gradient is that of the softmax of the perturbed logits (Jang et al. 2017).

    Args:
        logit: Logits, illegal actions at minus infinity, shape (..., A).
        uniform: Uniform numbers in [0, 1), shape (..., A).
    """
    perturbed = logit + gumbel(uniform)
    soft = perturbed.softmax(-1)
    hard = one_hot(perturbed.argmax(-1), logit.shape[-1])
    return hard + soft - soft.detach()
