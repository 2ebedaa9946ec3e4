"""The base of the algorithms that learn action values of a team from replay: config, acting and parts of losses.

A minibatch holds sequences of steps of one episode, with the state that the network had before the first one (the
stored state of R2D2); those of agents without memory have one step. Each agent explores on its own: one draw for each
agent and env. A time limit bootstraps from the true final observation. An agent that has left the episode has the
value 0; losses are means over the agents that are in it.

Shapes: T steps of a sequence, B sequences, N agents, A actions, S size of a recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, TypeVar, cast

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require, searched
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.recurrent import EnvStates, act, memory_of, with_memory
from lightning_ding.policy.q_learning import QLearningLearnConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig, ReplayConfig, ReplayPolicy
from lightning_ding.policy.teams.config import TEAM_SHAPES, TeamImageModelConfig, team_section
from lightning_ding.utils import teams
from lightning_ding.utils.schedules import EpsConfig
from lightning_ding.worker.config import ReplayBufferConfig

UNROLL = 10  # steps that agents with memory learn from together, if the config leaves them open


@dataclass(frozen=True, kw_only=True)
class TeamCoreConfig:
    """The recurrent layers of agents."""

    type: Literal["lstm", "gru"] | None = None
    """Kind of recurrent layer; None for agents without memory."""
    hidden_size: int = 64
    """Width of a layer, >= 1. A transition stores the state of all agents; needs type."""
    num_layers: int = 1
    """Number of recurrent layers, >= 1; needs type."""

    def __post_init__(self) -> None:
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            allowed = ">= 1" if self.type else "left at its default without model.core.type"
            require(value >= 1 if self.type else value == one.default, f"model.core.{one.name}", allowed, value)


@dataclass(frozen=True, kw_only=True)
class TeamQModelConfig(TeamImageModelConfig):
    """The action values of the agents: an encoder, perhaps with a memory, and a linear layer."""

    core: TeamCoreConfig = field(default_factory=TeamCoreConfig)
    """The recurrent layers of the agents, which share their weights."""


@dataclass(frozen=True, kw_only=True)
class TeamQLearnConfig(QLearningLearnConfig):
    """Options for updates."""

    update_per_collect: int = 4
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = searched(64, "choice(16, 32, 64, 128)")
    """Sequences of a minibatch on each rank, >= 1."""
    learning_rate: float = searched(5e-4, "log(1e-5, 1e-2)")
    """Step size, > 0."""
    target_theta: float | None = searched(0.01, "log(1e-3, 0.1)")
    """Step size of the soft update of the target after every update, in (0, 1]; None copies the network instead."""
    loss: rl.TDLoss = "mse"
    """Loss of the temporal-difference error."""


@dataclass(frozen=True, kw_only=True)
class TeamQCollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 32
    """Transitions of a round on each rank, >= 1; None with n_episode."""
    unroll_len: int = 1
    """Steps of a collected item; only 1, because the buffer draws the sequences, see learn_unroll_len."""


@dataclass(frozen=True, kw_only=True)
class TeamQOtherConfig:
    """Exploration and replay, which the sections learn and collect do not contain."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The epsilon schedule; each agent explores on its own."""
    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="sequence", replay_buffer_size=100_000)
    )
    """The replay buffer, one that draws sequences: sequence, or with priority prioritised_sequence."""


@dataclass(frozen=True, kw_only=True)
class TeamQConfig(ReplayConfig):
    """The config of the algorithms that learn action values of a team."""

    nstep: int = searched(1, "int(1, 5)")
    """Steps of the return, >= 1; fewer at an episode's end."""
    random_collect_size: int = 512
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    learn_unroll_len: int | None = None
    """Steps of a sequence that are learned from, >= 1; None means 10 with a memory, and 1 without. With it, sequences
    begin at every learn_unroll_len-th step of an episode; without it, at any step."""
    model: TeamQModelConfig = field(default_factory=TeamQModelConfig)
    """The action values of the agents."""
    learn: TeamQLearnConfig = field(default_factory=TeamQLearnConfig)
    """Options for updates."""
    collect: TeamQCollectConfig = field(default_factory=TeamQCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: TeamQOtherConfig = field(default_factory=TeamQOtherConfig)
    """Exploration and replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.learn_unroll_len
        require(length is None or length >= 1, "learn_unroll_len", ">= 1 or None", length)


class TeamQBatch(TypedDict, total=False):
    """A minibatch of B sequences of T steps; those after the end of an episode are padding."""

    obs: dict[str, Tensor]
    """Observations of the team, leading axes (T, B)."""
    action: Tensor
    """Actions taken, counted from 0, shape (T, B, N)."""
    reward: Tensor
    """Rewards of the team in single steps, shape (T, B)."""
    next_obs: dict[str, Tensor]
    """True next observations, leading axes (T, B)."""
    terminated: Tensor
    """Whether a step terminated its episode, shape (T, B)."""
    mask: Tensor
    """Whether a step is real, shape (T, B)."""
    recurrent_state: Tensor
    """State of the network before the first step, shape (B, S); S is 0 without memory."""
    IS: Tensor
    """Importance-sampling weights, shape (B,); with ``priority_IS_weight``."""
    priority: Tensor
    """Priorities of the sequences, shape (B,); with ``priority``."""


class Steps(NamedTuple):
    """Outputs of both networks for the observations before and after the steps of a minibatch."""

    now: dict[str, Tensor]
    """Observations before the steps, leading axes (T, B)."""
    after: dict[str, Tensor]
    """Observations after the steps, leading axes (T, B)."""
    alive: Tensor
    """1 for agents that are in the episode, else 0, before the steps and after the last one, shape (T + 1, B, N)."""
    output: dict[str, Tensor]
    """Output of the network before the steps, leading axes (T, B); with gradient for those that are learned from."""
    later: dict[str, Tensor]
    """Output of the network after the steps, without gradient, leading axes (T, B)."""
    target: dict[str, Tensor]
    """Output of the target network after the steps, without gradient, leading axes (T, B)."""
    following: Tensor
    """Actions after the steps, shape (T, B, N), whose target value is bootstrapped from: the best ones by the network,
    or by the target network without ``double_q``."""


TeamConfigT = TypeVar("TeamConfigT", bound=TeamQConfig)


@with_memory
class TeamQPolicy(ReplayPolicy[TeamConfigT]):
    """A policy whose agents take the actions of their largest values.

    A subclass names its ``config_class`` and its network in ``default_model``. Its network's ``mix`` says which values
    are learned; one that learns more than these implements ``loss``.
    """

    learns_from_sequences: ClassVar[bool] = True
    shape_names: ClassVar[tuple[str, ...]] = TEAM_SHAPES
    network: ClassVar[str]
    """Registered name of the network."""
    model: Any
    _collecting: EnvStates
    _evaluating: EnvStates

    def _init_learn(self) -> None:
        self._make_target()
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return epsilon-greedy actions of all agents; ``eps`` overrides the schedule."""
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        output = act(self, self._collecting, obs)
        legal = self._legal(obs)
        q = rl.masked(output["logit"], legal).flatten(0, 1).cpu().numpy()  # (B N, A): a draw for each agent
        mask = None if legal is None else legal.flatten(0, 1).cpu().numpy()
        action = torch.from_numpy(rl.epsilon_greedy(q, epsilon, self.rng, mask)).view(output["logit"].shape[:2])
        return {"action": self.action_start.to_env(action), **memory_of(output)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        output = act(self, self._evaluating, obs)
        return {"action": self.action_start.to_env(self._greedy(output["logit"], obs))}

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return the minibatch: the buffer gives what the loss reads, and the target is computed with the loss."""
        return dict(data)

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self.updater.minimise(self.loss, batch)
        self._update_target()
        return report

    def loss(self, batch: TeamQBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temporal-difference loss of a minibatch of sequences and its metrics.

        Returns:
            The loss, a sum over the steps that are learned from, divided by ``learn_unroll_len`` B, so that every step
            has the same weight in all minibatches; where each agent has a value, a step counts the mean over its
            living agents. The metrics, detached: ``total_loss``, and the means ``q_value`` and ``target_q_value``; with
            ``priority`` also ``priority`` (B,).
        """
        steps = self._steps(batch)
        prediction = self.model.mix(self._chosen(steps, "logit", batch["action"]), steps.now)
        target = self._targets(batch, steps, "logit", self.target_model.mix)
        return self._result(batch, steps, prediction, target, self._td_loss(batch, steps, prediction, target))

    # ------------------------------------------------------------------ parts of losses

    def _steps(self, batch: TeamQBatch) -> Steps:
        """Return what both networks say of a minibatch."""
        now, after, state = batch["obs"], batch["next_obs"], batch["recurrent_state"]
        obs: Any = nested.concatenate([nested.index(now, slice(1)), after])  # of T + 1 steps
        output, later = self._outputs(obs, state)
        with torch.no_grad():
            if self.config.model.core.type is None:
                target = self.target_model(after, state)
            else:
                target = nested.index(_of_steps(self.target_model(obs, state)), slice(1, None))
        following = self._greedy((later if self.config.learn.double_q else target)["logit"], after)
        return Steps(now, after, teams.alive(obs), output, later, target, following)

    def _outputs(self, obs: dict[str, Tensor], state: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the network's output before the steps, and that after them without gradient.

        Agents without memory see each step by itself, so only those that are learned from need a gradient.
        """
        if self.config.model.core.type is None:
            length = self._unroll_len()
            learned = _of_steps(self.model(nested.index(obs, slice(length)), state))
            with torch.no_grad():
                later = _of_steps(self.model(nested.index(obs, slice(length, None)), state))
            if length == self.config.nstep == 1:
                return learned, later
            output: Any = nested.concatenate([learned, later])
        else:
            output = _of_steps(self.model(obs, state))
        return nested.index(output, slice(-1)), nested.apply(lambda x: x[1:].detach(), output)

    @staticmethod
    def _chosen(steps: Steps, name: str, action: Tensor) -> Tensor:
        """Return the values of actions, shape (T, B, N), 0 of agents that have left; ``name`` is that in the output."""
        return take(steps.output[name], action) * steps.alive[:-1]

    @torch.no_grad()
    def _targets(self, batch: TeamQBatch, steps: Steps, name: str, mix: Any) -> Tensor:
        """Return the targets of all steps, shape (T, B), or (T, B, N) where each agent has its own.

        Args:
            batch: The minibatch.
            steps: The outputs of both networks for the minibatch.
            name: Entry of the target network's output with the values of the agents' actions.
            mix: Maps values (T, B, N) and observations to the values that are bootstrapped from.
        """
        value: Tensor = mix(take(steps.target[name], steps.following) * steps.alive[1:], steps.after)
        return self._targets_of(batch, steps, value)

    @torch.no_grad()
    def _targets_of(self, batch: TeamQBatch, steps: Steps, value: Tensor) -> Tensor:
        """Return the targets for the values of the observations after the steps, shape (T, B) or (T, B, N)."""
        terminated = torch.zeros_like(batch["terminated"]) if self.config.learn.ignore_done else batch["terminated"]
        columns = (batch["reward"], terminated, batch["mask"])
        value = torch.cat([torch.zeros_like(value[:1]), value])  # nothing bootstraps from the first observation
        if value.ndim == 2:
            there_is_one = steps.alive.amax(-1)
            return rl.sequence_targets(*columns, value * there_is_one, self.config.discount_factor, self.config.nstep)
        number, reward = value.shape[2], teams.agent_rewards(batch)
        living = steps.alive[:-1].cumprod(0).bool()  # an agent that has left gets no reward of later steps
        of_agents = (batch["mask"].bool().unsqueeze(-1) & living).flatten(1)
        rows = (reward.flatten(1), terminated.repeat_interleave(number, 1), of_agents, value.flatten(1))
        return rl.sequence_targets(*rows, self.config.discount_factor, self.config.nstep).view_as(reward)

    def _learned(self, batch: TeamQBatch) -> Tensor:
        """Return which steps are learned from, shape (T, B): real ones whose n steps are in the sequence."""
        step = torch.arange(len(batch["mask"]), device=batch["mask"].device).unsqueeze(1)
        return batch["mask"].bool() & (step < self._unroll_len())

    def _share(self, batch: TeamQBatch, steps: Steps, value: Tensor) -> Tensor:
        """Return the weights of values (T, B) or (T, B, N), whose sum is 1 for each step that is learned from."""
        learned = self._learned(batch).to(value)
        if value.ndim == 2:
            return learned * steps.alive[:-1].amax(-1)
        alive = steps.alive[:-1]
        return learned.unsqueeze(-1) * alive / alive.sum(-1, keepdim=True).clamp(min=1)

    def _td_loss(
        self, batch: TeamQBatch, steps: Steps, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """Return the temporal-difference loss; see :meth:`loss`.

        Args:
            batch: The minibatch.
            steps: The outputs of both networks for the minibatch.
            prediction: Values with gradient, shape (T, B) or (T, B, N).
            target: Their targets.
            weight: A factor of each error, in the same shape; None for 1.
        """
        share = self._share(batch, steps, prediction)
        if self.config.priority_IS_weight:
            share = share * (batch["IS"] if share.ndim == 2 else batch["IS"].unsqueeze(-1))
        share = share if weight is None else share * weight
        scale = prediction.numel() / (self._unroll_len() * prediction.shape[1])  # of a mean over all numbers
        errors = (prediction.flatten(), target.flatten(), share.flatten())
        return scale * rl.td_loss(*errors, self.config.learn.loss)

    def _result(
        self, batch: TeamQBatch, steps: Steps, prediction: Tensor, target: Tensor, loss: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the metrics; see :meth:`loss`."""
        share, prediction = self._share(batch, steps, prediction), prediction.detach()
        count = share.sum().clamp(min=1)
        means = {"q_value": (prediction * share).sum() / count, "target_q_value": (target * share).sum() / count}
        report = {"total_loss": loss.detach(), **means}
        if self.config.priority:
            error, learned = (target - prediction).abs() * share, self._learned(batch)
            priority = rl.sequence_priority(error if error.ndim == 2 else error.sum(-1), learned)
            report["priority"] = torch.where(learned.any(0), priority, batch["priority"].to(priority))
        return loss, report

    def _greedy(self, logit: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the best legal actions, shape (..., N), of values (..., N, A)."""
        return rl.masked(logit, self._legal(obs)).argmax(-1)

    def _legal(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return which actions are legal, shape (..., N, A); None if all are."""
        model = cast(Any, self.config.model)
        return teams.legal_actions(obs, teams.action_counts(model.agent_num, model.action_shape))

    # ------------------------------------------------------------------ attributes

    def _unroll_len(self) -> int:
        return self.config.learn_unroll_len or (1 if self.config.model.core.type is None else UNROLL)

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "q_value", "target_q_value"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network."""
        return self.network, ["lightning_ding.model.teams.team_q"]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, spaces.Box):
            raise TypeError(f"{self.network} needs a MultiDiscrete action space, got {action_space}")
        return team_section(observation_space, action_space, self.network)

    @property
    def sample_options(self) -> dict[str, Any]:
        """Return the arguments of the buffer's ``sample``; the rewards are summed here, not by the buffer."""
        length = self._unroll_len()
        window = {"sequence": length + self.config.nstep - 1, "burn_in": 0}
        fixed = {} if self.config.model.core.type is None else {"period": length}
        return {"n_step": 1, "discount_factor": self.config.discount_factor, **window, **fixed}


def take(logit: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, shape (..., N), of values of all actions, shape (..., N, A)."""
    return logit.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def _of_steps(output: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's output without the state after the last step."""
    return {name: values for name, values in output.items() if name != "state"}
