"""MAT: PPO of a team with one transformer, whose agents act one after the other and know the actions before theirs.

Paper: Wen et al. 2022 (https://arxiv.org/abs/2205.14953). An encoder of what all agents see gives a value for each
agent; a decoder gives the distribution of each agent's action for the actions of the agents before it. Acting takes a
pass of the decoder for each agent, learning one pass with a causal mask.

Where this differs: agents with common weights see their own number, which the order of actions needs. The action before
the first one is a vector that is learned. An agent that died counts as zeros. Losses, advantages and the critic's scale
are those of ``mappo``. The order of agents is that of the env. Acting computes each pass of the decoder from its start.

Shapes: B batch, N agents, A actions or dimensions of an agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.on_policy import RolloutBatch
from lightning_ding.policy.ppo import PPOPolicy
from lightning_ding.policy.teams.mappo import MAPPOConfig
from lightning_ding.policy.teams.on_policy import TeamActorCriticModelConfig, TeamActorCriticPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.teams import action_counts, legal_actions


@dataclass(frozen=True, kw_only=True)
class MATModelConfig(TeamActorCriticModelConfig):
    """The transformer of a team."""

    n_blocks: int = 1
    """Blocks of the encoder, and of the decoder, >= 1."""
    n_heads: int = 1
    """Heads of each attention, >= 1; they divide the last width of encoder_hidden_size_list."""


@dataclass(frozen=True, kw_only=True)
class MATConfig(MAPPOConfig):
    """Everything that can be set of MAT."""

    model: MATModelConfig = field(default_factory=MATModelConfig)  # type: ignore[assignment]
    """The network; parameter_sharing is that of the layers before and after the transformer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate_actor", "learning_rate_critic"):
            rate = getattr(self.learn, name)
            require(rate is None, f"learn.{name}", "None with mat, whose actors and critics share a network", rate)


@POLICY_REGISTRY.register("mat")
class MATPolicy(TeamActorCriticPolicy, PPOPolicy):
    """PPO of a team whose agents act in turn; discrete actions, also masked ones, and continuous actions.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`MAT`.

    Example:
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = MATPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = MATConfig
    config: MATConfig  # type: ignore[assignment]
    parts_of_model: ClassVar[tuple[str, ...]] = ("encode", "decode", "compute_critic")
    model: Any

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered transformer of a team."""
        return "mat", ["lightning_ding.model.teams.mat"]

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        drawn, logit = self._act(obs, lambda distribution: distribution.sample(self.noise_source))
        log_prob = self._distribution(logit, obs).log_prob(drawn)
        return {"action": self._to_env(drawn), "drawn": drawn, "log_prob": log_prob}

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._act(obs, lambda distribution: distribution.mode())[0])}

    def _act(self, obs: Any, choose: Callable[[rl.Distribution], Tensor]) -> tuple[Tensor, Any]:
        """Return an action of each agent, shape (B, N) or (B, N, A), in the network's units, and the last ``logit``.

        Args:
            obs: Observations, leading axis B.
            choose: Gives the actions of one agent for their distribution.
        """
        section: Any = self.config.model
        encoded = self.model.encode(obs)
        legal = None
        if section.action_space == "discrete":
            legal = legal_actions(obs, action_counts(section.agent_num, section.action_shape))
        size = encoded.shape[:2] if section.action_space == "discrete" else (*encoded.shape[:2], section.action_shape)
        kind = torch.long if section.action_space == "discrete" else encoded.dtype
        unknown = list(torch.zeros(size, dtype=kind, device=encoded.device).unbind(1))
        chosen: list[Tensor] = []
        for agent in range(len(unknown)):
            logit = self.model.decode(encoded, obs, torch.stack([*chosen, *unknown[agent:]], 1))
            of_agent: Any = nested.apply(partial(torch.select, dim=1, index=agent), logit)
            mask = None if legal is None else legal[:, agent]
            chosen.append(choose(rl.distribution_of(of_agent, mask)))
        return torch.stack(chosen, 1), logit

    def _network_output(self, batch: RolloutBatch) -> dict[str, Any]:
        found: dict[str, Any] = self.model(batch["obs"], batch["action"])
        return found
