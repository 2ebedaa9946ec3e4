"""What MADDPG and SAC of teams share: values and rewards of each agent, and actions of all agents.

Each agent has its own reward and its own value, so cooperative, competitive and mixed games are learned alike. A team
with one reward gives it to each agent. An agent that has left the episode has the value 0, and counts in no loss.

Shapes: B batch, U minibatches of a round, N agents, A dimensions or actions of an agent, E critics. The networks get
discrete actions as one-hot vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.teams.agents import one_hot
from lightning_ding.policy.base.action_bounds import ActionBounds
from lightning_ding.policy.qac import ActorCriticBatch, QACConfigT, QACPolicy
from lightning_ding.policy.teams.config import TEAM_SHAPES, TeamModelConfig, team_section
from lightning_ding.utils.teams import (
    AGENT_REWARD,
    ALIVE,
    GLOBAL_STATE,
    action_counts,
    agent_rewards,
    alive,
    legal_actions,
)


@dataclass(frozen=True, kw_only=True)
class TeamQACModelConfig(TeamModelConfig):
    """The actors and the critics."""

    action_space: Literal["continuous", "discrete"] | None = None
    """Kind of the actions; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of the actions of all agents; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of the actions of all agents; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    critic_input: Literal["joint", "state", "local"] = "joint"
    """What the critics of an agent get: ``joint`` is the global state and the actions of all agents, ``local`` what the
    agent sees and its own action, so that agents learn independently, ``state`` these and the global state."""
    critic_hidden_size_list: Sequence[int] | None = None
    """Widths of the hidden layers of critics; None means encoder_hidden_size_list."""
    twin_critic: bool = False
    """Use two critics for each agent; the target is the smaller of their values."""
    last_layer_init: float | None = None
    """Initialise the last layers uniformly in [-x, x], x > 0; None initialises them like all other layers."""

    def __post_init__(self) -> None:
        init = self.last_layer_init
        require(init is None or init > 0, "model.last_layer_init", "> 0 or None", init)


class TeamBatch(ActorCriticBatch, total=False):
    """A minibatch as the losses read it; ``action`` is (B, N, A), and ``reward`` and ``discount_t`` are (B, N)."""

    alive: Tensor
    """1 for each agent that is in the episode at ``obs`` and 0 for the others, shape (B, N)."""


class TeamQACPolicy(QACPolicy[QACConfigT]):
    """Base of the policies with an actor and critics of each agent of a team; its methods come before those of a base.

    A network passed as ``model`` must have the modules ``actor`` and ``critic`` and the methods of :class:`TeamQAC`.
    """

    supports_tensors: ClassVar[bool] = False
    shape_names: ClassVar[tuple[str, ...]] = (*TEAM_SHAPES, "action_space")
    counts: tuple[int, ...] = ()
    """Number of actions of each agent; empty for continuous actions."""

    @property
    def _section(self) -> TeamQACModelConfig:
        return cast(TeamQACModelConfig, self.config.model)

    @property
    def is_discrete(self) -> bool:
        """Whether actions are discrete."""
        return self._section.action_space == "discrete"

    def _init_spaces(self) -> None:
        super()._init_spaces()
        model = self._section
        if model.agent_num is None or model.action_shape is None:
            return  # a network was passed, and the env is not known yet
        if self.is_discrete:
            self.counts = action_counts(model.agent_num, model.action_shape)
            return
        size = self._action_size()
        self.action_bounds = ActionBounds(size).to(self.device)
        low, high = model.action_low or [-1.0] * size, model.action_high or [1.0] * size
        self.action_bounds.set(low, high, bool(model.action_integer))

    def _action_size(self) -> int:
        """Return the number of dimensions of the continuous actions of all agents."""
        return cast(int, self._section.agent_num) * cast(int, self._section.action_shape)

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return a :class:`TeamBatch`, or one of all minibatches of a round, leading axes (B,) or (U, B).

        Minibatches that are already prepared are returned unchanged.

        Args:
            data: As that of :meth:`QACPolicy.prepare`, with ``action`` (..., N, A), or (..., N) if it is discrete.

        Raises:
            KeyError: If ``discount`` is needed and missing.
            ValueError: If ``reward`` and ``terminated`` have different shapes.
        """
        if "discount_t" in data:
            return dict(data)
        found, following = self._with_discount(data), data["next_obs"]
        discount = found["discount_t"].unsqueeze(-1) * alive(following)
        action = self._normalised(data["action"])
        own_values = {"reward": agent_rewards(data), "discount_t": discount, "alive": alive(data["obs"])}
        return {**found, "action": action, **own_values}

    def _normalised(self, action: Tensor) -> Tensor:
        if not self.is_discrete:
            return self.action_bounds.from_env(action.flatten(-2)).view(action.shape)
        return one_hot(action.long(), max(self.counts))

    def _to_env(self, action: Tensor) -> Tensor:
        """Return continuous actions, shape (B, N, A), in the units of the env."""
        return self.action_bounds.to_env(action.flatten(1)).view(action.shape)

    def _td_loss(self, batch: Any, q: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over living agents, summed over critics, of values (E, B, N), and the metrics to report."""
        weight = living_weight(batch["alive"])
        if self.config.priority_IS_weight:
            weight = weight * batch["IS"].unsqueeze(-1)
        loss = rl.critic_loss(q.flatten(1), target.flatten(), weight.flatten())
        report = {"critic_loss": loss.detach(), "q_value": q.detach(), "target_q_value": target}
        if self.config.priority:
            report["priority"] = living_mean(rl.critic_error(q, target), batch["alive"], 1)
        return loss, report

    def _logit(self, model: Any, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of all actions, shape (B, N, A), those of illegal ones at minus infinity."""
        logit, legal = model.compute_actor(obs)["logit"], legal_actions(obs, self.counts)
        return logit if legal is None else logit.masked_fill(~legal, -torch.inf)  # type: ignore[no-any-return]

    def _sampled(self, logit: Tensor, epsilon: float = 0.0) -> Tensor:
        """Return sampled actions, shape (B, N), each with probability epsilon a random legal one.

        Args:
            logit: Logits of the actions, illegal ones at minus infinity, shape (B, N, A).
            epsilon: Probability of a random action of an agent, in [0, 1].
        """
        noise = torch.as_tensor(self._uniform(logit.shape)).to(logit)
        rows = (logit + gumbel(noise)).flatten(0, 1)
        if self.tensor_envs is not None:
            return rl.epsilon_greedy_tensor(rows, epsilon).view(logit.shape[:2])
        legal = (rows > -torch.inf).cpu().numpy()
        return torch.from_numpy(rl.epsilon_greedy(rows.cpu().numpy(), epsilon, self.rng, legal)).view(logit.shape[:2])

    def _uniform(self, shape: Sequence[int]) -> Any:
        return self._source.random(tuple(shape), dtype=np.float32)

    def _noise(self, shape: Sequence[int]) -> dict[str, Any]:
        """Return the noise of actions: uniform numbers in [0, 1) if they are discrete, or that of the base class."""
        agents = cast(int, self._section.agent_num)
        if self.is_discrete:
            return {name: self._uniform([*shape, agents, max(self.counts)]) for name in ("noise", "next_noise")}
        return {name: drawn.reshape(*shape, agents, -1) for name, drawn in super()._noise(shape).items()}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of the actors and critics."""
        return "team_qac", ["lightning_ding.model.teams.team_qac"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        found = team_section(observation_space, action_space, type(self).__name__)
        entries = cast(spaces.Dict, observation_space).spaces
        if GLOBAL_STATE in entries and len(entries[GLOBAL_STATE].shape or ()) == 2:  # each agent has its own
            found["global_obs_shape"] = cast("tuple[int, ...]", entries[GLOBAL_STATE].shape)[1]
        if ALIVE in entries:  # the sum of n rewards has those after an agent left
            require(self.nstep == 1, "nstep", f"1 for a team whose observations have {ALIVE!r}", self.nstep)
        if AGENT_REWARD in entries:
            own = f"for a team whose observations have an {AGENT_REWARD!r}"
            require(self.nstep == 1, "nstep", f"1 {own}", self.nstep)
            kind = self.config.reward_model.type
            require(kind is None, "reward_model.type", f"None {own}", kind)
        return found | {"action_space": "continuous" if isinstance(action_space, spaces.Box) else "discrete"}


def living_weight(living: Tensor) -> Tensor:
    """Return weights, shape (B, N), of which a weighted mean over all agents is the mean over the living ones.

    Example:
        >>> living_weight(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
        tensor([[1.3333, 1.3333],
                [1.3333, 0.0000]])
    """
    return living * (living.numel() / living.sum().clamp(min=1))


def living_mean(value: Tensor, living: Tensor, axis: int | None = None) -> Tensor:
    """Return the mean of values, shape (B, N), over living agents: of all, or along an axis; 0 without one."""
    if axis is None:
        return (value * living).sum() / living.sum().clamp(min=1)
    return (value * living).sum(axis) / living.sum(axis).clamp(min=1)


def gumbel(uniform: Tensor) -> Tensor:
    """Return Gumbel noise of uniform numbers in [0, 1).

    Added to logits, the largest is a sample of their softmax (Gumbel 1954).
    """
    return -(-uniform.clamp(min=torch.finfo(uniform.dtype).tiny).log()).log()
