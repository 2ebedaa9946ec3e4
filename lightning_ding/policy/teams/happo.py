"""HAPPO: the agents of a team learn one after the other, each with the changes of those before it in mind.

Paper: Kuba et al. 2022, algorithm 4 (https://arxiv.org/abs/2109.11251). An agent's advantages are multiplied by the
ratios of new to old probability of the actions of all agents that have learned from this rollout already.

Where this differs: the order of the agents is drawn for each rollout and is the same on all ranks. Each actor has its
own optimizer; the critic, whose weights agents may share, learns after the actors. Advantages are those of each agent,
which are the team's if all agents get its reward. Everything else is that of ``mappo``.

Shapes: S transitions of a rollout, B batch, N agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import RolloutBatch
from lightning_ding.policy.teams.mappo import MAPPOConfig, MAPPOPolicy
from lightning_ding.policy.teams.on_policy import TeamActorCriticModelConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import gather_rows
from lightning_ding.utils.teams import ALIVE, alive


@dataclass(frozen=True, kw_only=True)
class HAPPOConfig(MAPPOConfig):
    """Everything that can be set of HAPPO; model.parameter_sharing and model.agent_id are those of the critics."""

    recompute_adv: bool = False
    """Always False: the critic learns after the actors, so that advantages stay as they are."""
    model: TeamActorCriticModelConfig = field(default_factory=TeamActorCriticModelConfig)  # type: ignore[assignment]
    """The network, whose agents see vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.recompute_adv, "recompute_adv", "False for happo", self.recompute_adv)
        require(not self.learn.rpo_alpha, "learn.rpo_alpha", "0 for happo", self.learn.rpo_alpha)


@POLICY_REGISTRY.register("happo")
class HAPPOPolicy(MAPPOPolicy):
    """PPO of a team whose agents have separate actors, which learn one after the other.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`HAVAC`, and its ``agents``.

    Example:
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = HAPPOPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = HAPPOConfig
    config: HAPPOConfig
    parts_of_model: ClassVar[tuple[str, ...]] = (*MAPPOPolicy.parts_of_model, "agents", "critic_parameters")
    _learner: int = 0  # the agent that learns, or N for the critic

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, model = self.config.learn, cast(Any, self.model)
        rates = [learn.learning_rate_actor] * len(model.agents) + [learn.learning_rate_critic]
        parts = [*(agent.parameters() for agent in model.agents), model.critic_parameters()]
        self.updater.optimizers = [
            make_optimizer(learn.optimizer, part, learn.learning_rate if rate is None else rate)
            for part, rate in zip(parts, rates, strict=True)
        ]

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S, agent after agent; return the metrics of the last updates."""
        data = self._renew_scale(self._learning_data(batch, self._sequences_of(batch)))
        number = data["log_prob"].shape[1]
        data["factor"] = torch.ones_like(data["log_prob"][:, 0])
        report: dict[str, Any] = {}
        for agent in self._order(number):
            report |= self._make_passes(data, agent)
            data["factor"] = data["factor"] * self._ratios(data, agent)
        return report | self._make_passes(data, number)

    def _make_passes(self, data: Batch, learner: int) -> dict[str, Any]:
        """Make all passes of one agent, or with N of the critic, and return the metrics of the last update."""
        self._learner = learner
        for _ in range(self.config.learn.epoch_per_collect):
            reports = self._make_pass(data)
            if learner < data["log_prob"].shape[1] and self._has_moved_far([one["approx_kl"] for one in reports]):
                break
        return reports[-1]

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        turns = torch.eye(minibatch["log_prob"].shape[1], device=minibatch["log_prob"].device)
        if self._learner == len(turns):
            report = self.updater.minimise(self.loss_of_critic, minibatch, self._learner)
        else:
            minibatch = {**minibatch, "turn": turns[self._learner]}
            report = self.updater.minimise(self.loss_of_actor, minibatch, self._learner)
        return report

    def loss_of_actor(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the agent whose ``turn`` it is, one of N numbers, and its metrics."""
        added = cast(Any, batch)
        obs = {**batch["obs"], ALIVE: alive(batch["obs"]) * added["turn"]}
        advantage = batch["advantage"] * added["factor"].unsqueeze(-1)
        return super().loss_of_actor(cast(Any, {**batch, "obs": obs, "advantage": advantage}))

    def _order(self, number: int) -> list[int]:
        """Return the agents in random order, the same on all ranks."""
        found: list[int] = gather_rows(self._permutation(number))[0].tolist()
        return found

    @torch.no_grad()
    def _ratios(self, data: Batch, agent: int) -> Tensor:
        """Return the ratio of new to old probability of an agent's actions, shape (S,); 1 where it is not alive."""
        log_prob = self._in_parts(self._log_prob, {name: data[name] for name in ("obs", "action")})
        ratio = (log_prob - data["log_prob"])[:, agent].exp()
        found: Tensor = ratio.masked_fill(alive(data["obs"])[:, agent] == 0, 1.0)
        return found

    def _log_prob(self, rows: Any) -> Tensor:
        found: Tensor = self._distribution(self._logit(rows["obs"]), rows["obs"]).log_prob(rows["action"])
        return found

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives, in all passes of all agents and of the critic."""
        return ((self.config.model.agent_num or 1) + 1) * super().update_per_collect

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of separate actors and critics."""
        return "havac", ["lightning_ding.model.teams.havac"]
