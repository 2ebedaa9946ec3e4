"""PQN: Q(lambda) from rollouts of many envs, without a replay buffer and without a target network.

Paper: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning" (https://arxiv.org/abs/2407.04811); returns:
Peng and Williams 1996 (https://doi.org/10.1007/BF00114731). Layer normalisation and many envs keep the values from
diverging, which a target network and replay do in DQN.

Where this differs: Adam instead of rectified Adam; the returns are computed from the values of the weights that
collected, once for all passes over a rollout, as in the authors' code, but a time limit bootstraps from the largest
value of the true final observation, where the authors' code treats it as termination. Hidden layers are those of the
option ``model.encoder_hidden_size_list``. ``train_iter`` counts minibatches.

Shapes: S transitions of a rollout, T steps, N envs, B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.config import LearnConfig, PolicyConfig
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.on_policy_options import OnPolicyCollectConfig, OnPolicyConfig, OnPolicyLearnConfig
from lightning_ding.policy.q_learning import QLearningModelConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import EpsConfig, ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class PQNModelConfig(QLearningModelConfig):
    """The Q-network: an encoder and a head."""

    layer_norm: bool = True
    """Normalise every hidden layer before its activation, which keeps the values from diverging."""
    dueling: bool = False
    """Split the head into a state value and advantages."""


@dataclass(frozen=True, kw_only=True)
class PQNLearnConfig(LearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = OnPolicyLearnConfig.MOVED | moved(
        target_update_freq="there is no target network", target_theta="there is no target network"
    )

    epoch_per_collect: int = 4
    """Passes over a rollout, >= 1."""
    batch_size: int | None = searched(128, "choice(32, 64, 128, 256, 512)")
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    learning_rate: float = searched(5e-4, "log(1e-5, 1e-2)")
    """Step size at the start, > 0."""
    lr_scheduler: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(type="linear"))
    """A factor of the step size that changes during the run; by default it falls to 0 at the end of the budget, and
    stays at 1 in a run without one."""
    lambda_: float = 0.95
    """Bias-variance mix of the returns, in [0, 1]: 0 for one step, 1 for all steps up to the end of the rollout."""
    grad_clip_norm: float | None = 10.0
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.batch_size
        require(self.epoch_per_collect >= 1, "learn.epoch_per_collect", ">= 1", self.epoch_per_collect)
        require(size is None or size >= 1, "learn.batch_size", ">= 1 or None", size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(0 <= self.lambda_ <= 1, "learn.lambda_", "in [0, 1]", self.lambda_)


@dataclass(frozen=True, kw_only=True)
class PQNCollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 1024
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""


@dataclass(frozen=True, kw_only=True)
class PQNOtherConfig:
    """Exploration."""

    eps: EpsConfig = field(default_factory=lambda: EpsConfig(decay=0.3, unit="budget"))
    """The epsilon schedule; by default it falls from 1 to 0.05 over three tenths of the run's budget."""


@dataclass(frozen=True, kw_only=True)
class PQNConfig(OnPolicyConfig):
    """Everything that can be set of PQN."""

    MOVED: ClassVar[dict[str, str]] = OnPolicyConfig.MOVED | moved(
        action_space="actions are always discrete",
        nstep="returns reach as far as the rollout, see learn.lambda_",
        random_collect_size="set other.eps.start, the share of random actions at the start",
    )

    model: PQNModelConfig = field(default_factory=PQNModelConfig)
    """The Q-network."""
    learn: PQNLearnConfig = field(default_factory=PQNLearnConfig)
    """Options for updates."""
    collect: PQNCollectConfig = field(default_factory=PQNCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: PQNOtherConfig = field(default_factory=PQNOtherConfig)
    """Exploration."""


PQNBatch = TypedDict(
    "PQNBatch",
    {
        "obs": Any,  # observations, leading axis B, which may have an ``action_mask``
        "action": Tensor,  # actions taken, counted from 0, shape (B,)
        "return": Tensor,  # targets of the values of these actions, shape (B,)
    },
)
"""A minibatch as :meth:`PQNPolicy.loss` reads it, and what ``_process_transition`` of a subclass adds."""


@POLICY_REGISTRY.register("pqn")
class PQNPolicy(OnPolicyPolicy[PQNConfig]):
    """PQN for discrete actions; vector, image and dict observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": action values}``.

    Example:
        >>> policy = PQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = PQNConfig
    supports_tensors: ClassVar[bool] = True
    config: PQNConfig
    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape")

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Return epsilon-greedy actions; ``eps`` overrides the schedule."""
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        q = self._values(obs)
        distribution = rl.epsilon_greedy_distribution(q, epsilon)
        drawn = self._draw(distribution, q)
        return {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._values(obs).argmax(1))}

    def _values(self, obs: Any) -> Tensor:
        """Return the action values, illegal actions at minus infinity, shape (B, A)."""
        return rl.masked(self._logit(obs), obs.get("action_mask") if isinstance(obs, Mapping) else None)

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in several passes; return the metrics of the last update."""
        data = self._learning_data(batch, self._sequences_of(batch))
        for _ in range(self.config.learn.epoch_per_collect):
            reports = self._make_pass(data)
        return reports[-1]

    @torch.no_grad()
    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        kept = {name: rollout[name] for name in ("obs", "action")}
        return self._added_columns(rollout) | kept | {"return": self._returns(rollout, sequences)}

    def _returns(self, rollout: Batch, sequences: rl.Sequences) -> Tensor:
        """Return the Q(lambda) returns of the transitions, shape (S,)."""
        value = sequences.lay_out(self._best_value(rollout["obs"]))
        reward, terminated = sequences.lay_out(rollout["reward"]), sequences.lay_out(rollout["terminated"])
        next_value = sequences.flatten(torch.cat([value[1:], value[-1:]]))
        is_cut = sequences.flatten(sequences.ended & ~terminated)  # by a time limit or the end of the rollout
        final = nested.index(rollout["next_obs"], is_cut)
        if nested.length(final):  # none where every sequence ends with a terminal state
            next_value[is_cut] = self._best_value(final)
        gamma, lambda_ = self.config.discount_factor, self.config.learn.lambda_
        found = rl.lambda_return(reward, sequences.lay_out(next_value), terminated, sequences.ended, gamma, lambda_)
        return sequences.flatten(found)

    def _best_value(self, obs: Any) -> Tensor:
        """Return the largest value of a legal action of each observation, shape (S,)."""
        return self._in_parts(self._largest_value, obs)

    def _largest_value(self, obs: Any) -> Tensor:
        return self._values(obs).amax(1)

    def loss(self, batch: PQNBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half the mean squared error of the values of the actions taken, and the metrics to report.

        Returns:
            The loss, and detached: ``total_loss``, a scalar, ``q_value`` (B,), and ``target_q_value`` (B,).
        """
        q_value = rl.take_action_value(self._logit(batch["obs"]), batch["action"])
        loss = 0.5 * F.mse_loss(q_value, batch["return"])
        report = {"total_loss": loss, "q_value": q_value, "target_q_value": batch["return"]}
        return loss, {name: one.detach() for name, one in report.items()}

    @property
    def update_per_collect(self) -> int:
        """Updates that a rollout gives, in all passes."""
        return self.config.learn.epoch_per_collect * super().update_per_collect

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"eps": self._epsilon_at(command_info["envstep"])}

    def _epsilon_at(self, env_step: int) -> float:
        return self.config.other.eps.value(self.progress.exploration_step(env_step), self.progress.budget)

    def _init_spaces(self) -> None:
        Policy._init_spaces(self)  # discrete actions have no bounds

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise TypeError(f"PQNPolicy needs a Discrete action space, got {action_space}; dqn and ppo take both")
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, "PQNPolicy")}

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "q_value", "target_q_value"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "dqn", ["lightning_ding.model.dqn"]
