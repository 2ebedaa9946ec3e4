"""PPO of teams: MAPPO, whose critic sees everything, IPPO, whose critic does not, and MAPPO with a memory.

Papers: MAPPO: Yu et al. 2022 (https://arxiv.org/abs/2103.01955); IPPO: de Witt et al. 2020
(https://arxiv.org/abs/2011.09533).

Where this differs: the critic of an agent sees the global state and what the agent sees, with its number, which is the
paper's agent-specific state without its pruning. Its loss is a squared error instead of Huber's. Advantages are
standardised in each minibatch. An agent that died has no part in the losses, in place of a state of zeros. Everything
else is that of ``ppo``, as are all options.

Shapes: B batch, N agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.recurrent import RecurrentModelConfig, with_memory
from lightning_ding.policy.on_policy_options import ActorCriticCollectConfig, OnPolicyConfig
from lightning_ding.policy.ppo import PPOLearnConfig, PPOPolicy
from lightning_ding.policy.recurrent_ppo import RecurrentPPOPolicy
from lightning_ding.policy.teams.on_policy import TeamActorCriticPolicy, TeamVACModelConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class MAPPOCollectConfig(ActorCriticCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 1024
    """Steps of the team in a rollout on each rank, >= 1, a few more if the envs do not divide it; None with
    n_episode."""


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(OnPolicyConfig):
    """Everything that can be set of PPO of teams."""

    recompute_adv: bool = True
    """Compute values and advantages again before each pass over a rollout."""
    model: TeamVACModelConfig = field(default_factory=TeamVACModelConfig)
    """The network."""
    learn: PPOLearnConfig = field(default_factory=PPOLearnConfig)
    """Options for updates."""
    collect: MAPPOCollectConfig = field(default_factory=MAPPOCollectConfig)
    """Options for collecting: the amount and the collector."""


@POLICY_REGISTRY.register("mappo")
class MAPPOPolicy(TeamActorCriticPolicy, PPOPolicy):
    """PPO of a team whose critic sees the global state; discrete actions, also masked ones, and continuous actions.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`TeamVAC`.

    Example:
        >>> import torch
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = MAPPOPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = MAPPOConfig
    config: MAPPOConfig  # type: ignore[assignment]
    centralised: ClassVar[bool] = True
    """Whether the critic sees the global state."""

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of actors and critics."""
        return "team_vac", ["lightning_ding.model.teams.team_vac"]

    def _model_cfg(self) -> dict[str, Any]:
        return {**super()._model_cfg(), "centralised": self.centralised}


@POLICY_REGISTRY.register("ippo")
class IPPOPolicy(MAPPOPolicy):
    """PPO of a team whose agents learn independently: the critic of an agent sees what the agent sees.

    Example:
        >>> import torch
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = IPPOPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    centralised: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class RecurrentMAPPOModelConfig(RecurrentModelConfig, TeamVACModelConfig):
    """The network of the actors and the critics of a team, with recurrent layers."""


@dataclass(frozen=True, kw_only=True)
class RecurrentMAPPOConfig(MAPPOConfig):
    """Everything that can be set of recurrent MAPPO."""

    learn_unroll_len: int = 32
    """Steps of a sequence, >= 1; the gradient reaches no further back."""
    model: RecurrentMAPPOModelConfig = field(default_factory=RecurrentMAPPOModelConfig)
    """The network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learn_unroll_len >= 1, "learn_unroll_len", ">= 1", self.learn_unroll_len)
        for name in ("learning_rate_actor", "learning_rate_critic"):
            rate = getattr(self.learn, name)
            require(rate is None, f"learn.{name}", "None with recurrent_mappo, which has one optimizer", rate)


@POLICY_REGISTRY.register("recurrent_mappo")
@with_memory
class RecurrentMAPPOPolicy(TeamActorCriticPolicy, RecurrentPPOPolicy):
    """MAPPO whose agents and critics have a memory, and which learns from sequences of a rollout.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`RecurrentTeamVAC`. All agents
    share their weights. States of envs are kept as in :class:`RecurrentPPOPolicy`.

    Example:
        >>> import torch
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = RecurrentMAPPOPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = RecurrentMAPPOConfig
    config: RecurrentMAPPOConfig  # type: ignore[assignment]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered recurrent network of actors and critics."""
        return "recurrent_team_vac", ["lightning_ding.model.teams.team_vac"]
