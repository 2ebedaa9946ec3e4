"""What on-policy algorithms of teams share: distributions, advantages and losses with an axis of agents.

An agent that is not ``alive`` in an observation has no part in the losses, in the scale of the critic and in the mean
of the advantages. One that is alive in an observation and not in the next one terminates there: its next value is 0.
The end of the env's episode by termination ends it for all, and a truncation bootstraps from the values of all agents.

Shapes: S transitions of a rollout, T steps, E envs, B batch, N agents, A actions or dimensions of an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.teams.team_vac import OutputLayer
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import ActorCriticPolicy, RolloutBatch
from lightning_ding.policy.teams.config import TEAM_SHAPES, TeamImageModelConfig, TeamModelConfig, team_section
from lightning_ding.utils.teams import AGENT_REWARD, ALIVE, action_counts, agent_rewards, alive, legal_actions


@dataclass(frozen=True, kw_only=True)
class TeamActorCriticModelConfig(TeamModelConfig):
    """The network of the actors and the critics of a team."""

    action_space: Literal["discrete", "continuous"] | None = None
    """Kind of action; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of each agent in the env, N A numbers; None means the env's, or -1 without an
    env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of each agent in the env, N A numbers; None means the env's, or 1 without an
    env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    critic_hidden_size_list: Sequence[int] | None = None
    """Widths of the layers of a critic; None means those of encoder_hidden_size_list."""
    log_std_init: float | None = None
    """Logarithm of the initial standard deviation of continuous actions; None means -0.5."""


@dataclass(frozen=True, kw_only=True)
class TeamVACModelConfig(TeamImageModelConfig, TeamActorCriticModelConfig):
    """The network of the actors and the critics of a team that may see images, for which each has an encoder."""


class TeamActorCriticPolicy(ActorCriticPolicy[Any]):
    """The parts of an actor-critic policy that differ for a team; mixed into an algorithm of a single agent."""

    shape_names: ClassVar[tuple[str, ...]] = (*TEAM_SHAPES, "action_space")

    # ------------------------------------------------------------------ spaces and actions

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        found = team_section(observation_space, action_space, type(self).__name__)
        has_own = isinstance(observation_space, spaces.Dict) and AGENT_REWARD in observation_space.spaces
        reward_model = self.config.reward_model.type
        only = f"None for a team whose agents have rewards of their own, the entry {AGENT_REWARD!r} of observations"
        require(reward_model is None or not has_own, "reward_model.type", only, reward_model)
        is_box = isinstance(action_space, spaces.Box)
        return found | {"action_space": "continuous" if is_box else "discrete"}

    def _continuous_size(self) -> int:
        section = self.config.model
        return int(section.agent_num * section.action_shape)

    def _to_env(self, action: Tensor) -> Any:
        if not action.is_floating_point():
            return self.action_start.to_env(action)
        assert self.bounds is not None  # the network has continuous actions only if the config says so
        return self.bounds.to_env(action.flatten(-2)).view(action.shape)

    def _distribution(self, logit: Any, obs: Any) -> rl.Distribution:
        section = self.config.model
        if isinstance(logit, Tensor):
            return rl.Categorical(logit, legal_actions(obs, action_counts(section.agent_num, section.action_shape)))
        return rl.distribution_of(logit, obs.get("action_mask"))

    # ------------------------------------------------------------------ advantages

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        return super()._learning_data(rollout | self._of_agents(rollout), sequences)

    def _of_agents(self, rollout: Batch) -> Batch:
        """Return ``reward`` of each agent, and whether it has ``terminated``, both of shape (S, N)."""
        ended = rollout["terminated"].bool().unsqueeze(-1)
        has_left = alive(rollout["next_obs"]) == 0
        terminated = has_left if self.config.learn.ignore_done else ended | has_left
        return {"reward": agent_rewards(rollout), "terminated": terminated.expand_as(has_left)}

    def _advantage(self, rollout: Batch, value: Tensor, sequences: rl.Sequences) -> tuple[Tensor, Tensor]:
        """Return advantages in units of the reward, and the targets of the critic's output, both of shape (S, N)."""
        table = {"reward": rollout["reward"], "value": self._returns_of(value), "terminated": rollout["terminated"]}
        steps = {name: sequences.lay_out(column) for name, column in table.items()}  # (T, E, N)
        of_all = steps["terminated"].all(-1)
        next_value = self._next_value(rollout, steps["value"], of_all, sequences)
        ended, gamma = sequences.ended.unsqueeze(-1), self.config.discount_factor
        found = rl.gae(
            *(steps["reward"], steps["value"], next_value, steps["terminated"], ended),
            *(gamma, self.config.collect.gae_lambda),
        )
        advantage = sequences.flatten(found)
        return advantage, self._outputs_for(advantage + table["value"])

    def _take_in_returns(self, value: Tensor, obs: Any = None) -> None:
        super()._take_in_returns(value[alive(obs) > 0] if obs is not None and ALIVE in obs else value.flatten(), obs)

    def _output_layer(self, obs: Any) -> Any:
        layer: Any = getattr(self.model, "critic_output", None)
        return layer if isinstance(layer, OutputLayer) else super()._output_layer(obs)

    def _standardise(self, tables: list[Tensor], obs: list[Any]) -> list[Tensor]:
        living = [alive(one).flatten(1) for one in obs] if ALIVE in obs[0] else None
        found = standardise_over_ranks([table.flatten(1) for table in tables], counted=living)
        return [new.view_as(table) for new, table in zip(found, tables, strict=True)]

    # ------------------------------------------------------------------ losses

    def _policy_loss(self, log_prob: Tensor, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        names = ("log_prob", "advantage")
        (log_prob, *columns), weight = of_living(batch["obs"], log_prob, *(batch[name] for name in names))
        living: Any = {**batch, **dict(zip(names, columns, strict=True))}
        loss, report = super()._policy_loss(log_prob, living)
        return loss * weight, {name: value * weight for name, value in report.items()}

    def _value_loss(self, value: Tensor, batch: Any) -> Tensor:
        names = ("value", "return")
        (value, *columns), weight = of_living(batch["obs"], value, *(batch[name] for name in names))
        living: Any = {**batch, **dict(zip(names, columns, strict=True))}
        return super()._value_loss(value, living) * weight

    def _mean_entropy(self, distribution: rl.Distribution, batch: RolloutBatch) -> Tensor:
        (entropy,), weight = of_living(batch["obs"], distribution.entropy())
        return entropy.mean() * weight


def of_living(obs: Any, *columns: Tensor) -> tuple[list[Tensor], Tensor | float]:
    """Return columns, shape (B, N), with 0 for agents that are not alive, and the weight of a mean over all of them.

    A mean over all agents times the weight is the mean over living ones, if what dead ones add is 0.
    """
    if ALIVE not in obs:
        return list(columns), 1.0
    living = alive(obs) > 0
    return [column.masked_fill(~living, 0.0) for column in columns], living.numel() / living.sum().clamp(min=1)
