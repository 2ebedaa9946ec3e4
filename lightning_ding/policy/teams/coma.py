"""COMA: each agent learns from what its action added, given the actions of all others.

Paper: Foerster et al. 2018, section 4 and algorithm 1 (https://arxiv.org/abs/1705.08926). A critic values each action
of an agent while the others do what they did. The advantage of an action is its value less the mean value of the
agent's actions under its policy; the targets of the critic are those of TD(lambda), from a target network.

Where this differs: agents have no memory. The critic makes several passes over a rollout, the actors then one; the
target network follows after each update of the critic by a share of ``learn.target_theta``. After the last step of a
rollout or at a time limit, the value is that of actions which the policy draws there. Advantages are standardised in
each minibatch, values have the scale of ``learn.value_norm``. The entropy of the policy keeps it exploring, in place of
a smallest probability of each action. The critic sees no last actions.

Shapes: S transitions of a rollout, T steps, E envs, B batch, N agents, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import RolloutBatch
from lightning_ding.policy.on_policy_options import ActorCriticLearnConfig, OnPolicyCollectConfig, OnPolicyConfig
from lightning_ding.policy.replay_policy import make_target, polyak_update
from lightning_ding.policy.teams.on_policy import TeamActorCriticPolicy, TeamVACModelConfig, of_living
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.teams import AGENT_STATE, axes_of_agents


@dataclass(frozen=True, kw_only=True)
class COMALearnConfig(ActorCriticLearnConfig):
    """Options for updates."""

    batch_size: int | None = None
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    epoch_per_collect: int = 10
    """Passes of the critic over a rollout, >= 1; the actors make one after them."""
    td_lambda: float = 0.8
    """Bias-variance mix of the critic's targets, in [0, 1]; 1 for returns to the end of the rollout."""
    target_theta: float = 0.01
    """Share of the critic in the target network after every update of the critic, in (0, 1]."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    value_norm: bool | Literal["symlog", "popart"] = "popart"
    """Train the critic to predict returns divided by their root mean square (True), less their mean and divided by
    their standard deviation (popart), or their symmetric logarithm (symlog). Of the first two, a change leaves all
    values as they are."""
    ppo_param_init: bool = True
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epoch_per_collect >= 1, "learn.epoch_per_collect", ">= 1", self.epoch_per_collect)
        require(0 <= self.td_lambda <= 1, "learn.td_lambda", "in [0, 1]", self.td_lambda)
        require(0 < self.target_theta <= 1, "learn.target_theta", "in (0, 1]", self.target_theta)


@dataclass(frozen=True, kw_only=True)
class COMACollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 512
    """Steps of the team in a rollout on each rank, >= 1, a few more if the envs do not divide it; None with
    n_episode."""


@dataclass(frozen=True, kw_only=True)
class COMAConfig(OnPolicyConfig):
    """Everything that can be set of COMA."""

    model: TeamVACModelConfig = field(default_factory=TeamVACModelConfig)
    """The network."""
    learn: COMALearnConfig = field(default_factory=COMALearnConfig)
    """Options for updates."""
    collect: COMACollectConfig = field(default_factory=COMACollectConfig)
    """Options for collecting: the amount and the collector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.model.action_space
        require(kind != "continuous", "model.action_space", "discrete for coma, which averages over all actions", kind)


@POLICY_REGISTRY.register("coma")
class COMAPolicy(TeamActorCriticPolicy):
    """COMA of a team with discrete actions, also masked ones.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`COMA`.

    Example:
        >>> shapes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 12, "action_shape": 5}
        >>> policy = COMAPolicy({"model": {**shapes, "action_space": "discrete"}})
        >>> policy.eval_mode.forward({"agent_state": torch.zeros(2, 3, 4)})["action"].shape
        torch.Size([2, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = COMAConfig
    config: COMAConfig
    parts_of_model: ClassVar[tuple[str, ...]] = (
        *("compute_actor", "compute_critic", "actor_parameters", "critic_parameters"),
    )
    model: Any
    target_model: Any

    # ------------------------------------------------------------------ setting up

    def _init_learn(self) -> None:
        super()._init_learn()
        learn = self.config.learn
        self.target_model = make_target(self.model)
        self._target_in_eval_mode = InEvalMode(self.target_model, where_it_matters=True)
        rates = [
            learn.learning_rate if one is None else one
            for one in (learn.learning_rate_actor, learn.learning_rate_critic)
        ]
        parts = self.model.actor_parameters(), self.model.critic_parameters()
        self.updater.optimizers = [
            make_optimizer(learn.optimizer, part, rate) for part, rate in zip(parts, rates, strict=True)
        ]

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, spaces.Box):
            raise TypeError(f"coma needs discrete actions of a team, got {action_space}; mappo takes continuous ones")
        return super()._shapes_of(observation_space, action_space)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of actors and critics of all actions."""
        return "coma", ["lightning_ding.model.teams.coma"]

    # ------------------------------------------------------------------ targets and advantages

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        """Return the columns that the critic's loss reads; ``value`` is that of the target network."""
        table: Batch = self._of_agents(rollout)
        kept = {name: rollout[name] for name in ("obs", "action")}
        value = self._in_parts(self._target_value, kept)
        steps = {name: sequences.lay_out(column) for name, column in table.items()}  # (T, E, N)
        known = sequences.lay_out(self._returns_of(value))
        next_value = self._next_value(rollout, known, steps["terminated"].all(-1), sequences)
        found = rl.lambda_return(
            *(steps["reward"], next_value, steps["terminated"], sequences.ended.unsqueeze(-1)),
            *(self.config.discount_factor, self.config.learn.td_lambda),
        )
        target = self._outputs_for(sequences.flatten(found))
        return self._added_columns(rollout) | kept | {"value": value, "return": target}

    def _values(self, obs: Any) -> Tensor:
        """Return the output of the target network for actions that the policy draws, shape (S, N)."""
        drawn = self._distribution(self._in_parts(self._logit, obs), obs).sample(self.noise_source)
        return self._in_parts(self._target_value, {"obs": obs, "action": drawn})

    def _target_value(self, rows: Any) -> Tensor:
        with self._target_in_eval_mode:
            q = self.target_model.compute_critic(rows["obs"], rows["action"])["q_value"]
        return rl.take_action_value(self._corrected(q), rows["action"])

    def _critic_output(self, obs: Any) -> Tensor:
        """Return the critic's output for the first action of each agent, by which the critic's layers are measured."""
        action = torch.zeros(axes_of_agents(obs), dtype=torch.long, device=obs[AGENT_STATE].device)
        return rl.take_action_value(self.model.compute_critic(obs, action)["q_value"], action)

    def _output_layer(self, obs: Any) -> Any:
        return super()._output_layer(None)  # without ``critic_output``, an affine function follows the scale

    @torch.no_grad()
    def _counterfactual_advantage(self, rows: Any) -> Tensor:
        """Return what each agent's action adds to the mean of its actions, in units of the reward, shape (S, N)."""
        q = self._corrected(self.model.compute_critic(rows["obs"], rows["action"])["q_value"])
        q, distribution = self._returns_of(q), self._distribution(self._logit(rows["obs"]), rows["obs"])
        baseline = rl.expectation(distribution.log_p, q)  # type: ignore[attr-defined]  # a Categorical
        return rl.take_action_value(q, rows["action"]) - baseline

    def _keep_values(self, before: tuple[Tensor, Tensor], layer: nn.Linear | None) -> None:
        super()._keep_values(before, layer)
        if layer is not None and not self.return_statistics.corrects:
            of_target = self.target_model.critic_output
            rl.rescale_output(of_target.weight, of_target.bias, *before, *self._moments())

    # ------------------------------------------------------------------ learning

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S: the critic first; return the metrics of the last updates."""
        data = self._renew_scale(self._learning_data(batch, self._sequences_of(batch)))
        for _ in range(self.config.learn.epoch_per_collect):
            critic = self._make_pass(data)[-1]
        kept = {name: data[name] for name in ("obs", "action")}
        actor = self._make_pass({**data, "advantage": self._in_parts(self._counterfactual_advantage, kept)})[-1]
        return {**critic, **actor, "total_loss": actor["total_loss"] + critic["total_loss"]}

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        """Make an update of the actors on a minibatch with ``advantage``, or else of the critic."""
        if "advantage" in minibatch:
            return self.updater.minimise(self.loss_of_actor, minibatch)
        report = self.updater.minimise(self.loss_of_critic, minibatch, 1)
        polyak_update(self.model, self.target_model, self.config.learn.target_theta)
        return report

    def _policy_loss(self, log_prob: Tensor, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        (log_prob, advantage), weight = of_living(batch["obs"], log_prob, batch["advantage"])
        return rl.policy_gradient_loss(log_prob, advantage) * weight, {}

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the actors on a minibatch with ``advantage``, or else of the critic, and its metrics."""
        return self.loss_of_actor(batch) if "advantage" in batch else self.loss_of_critic(batch)

    def loss_of_critic(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half the squared errors of the values of the actions taken, and the metrics."""
        q = self._corrected(self.model.compute_critic(batch["obs"], batch["action"])["q_value"])
        error = rl.take_action_value(q, batch["action"]) - batch["return"]
        (error,), weight = of_living(batch["obs"], error)
        value_loss = 0.5 * error.square().mean() * weight
        loss = self.config.learn.value_weight * value_loss
        return loss, {"total_loss": loss.detach(), "value_loss": value_loss.detach()}

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives, in all passes of the critic and in that of the actors."""
        return (self.config.learn.epoch_per_collect + 1) * super().update_per_collect

    # ------------------------------------------------------------------ checkpoints

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"target_model": self.target_model.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.target_model.load_state_dict(state["target_model"])
