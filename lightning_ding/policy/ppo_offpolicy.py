"""PPO from a replay buffer: the clipped loss on minibatches of the last rollouts.

Papers: Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347); advantages: Schulman et al. 2016, eq. 16
(https://arxiv.org/abs/1506.02438). The loss is that of ``ppo``.

Values and advantages are computed when data are collected, so that each transition keeps those of the policy that
acted. With ``nstep_return`` the critic's targets are n-step returns with its newest values instead. In a distributed
run the critic's scale is published with the weights, so that collectors compute values in its units.

Where this differs: a time limit and the end of a round bootstrap from the true next observation. Values are clipped by
a separate distance, and by default not at all. The critic's scale (``value_norm``) is renewed once a round, and leaves
all values as they are. Advantages are standardised (``adv_norm``) by default, as in ``ppo`` here.

Shapes: S transitions of a round, B batch, U minibatches of a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.impala import ReplayedConfig, ReplayedLearnConfig
from lightning_ding.policy.on_policy import ActorCriticPolicy
from lightning_ding.policy.ppo import ClippedSurrogateLearnConfig, PPOPolicy
from lightning_ding.policy.qac import QACOtherConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class PPOOffLearnConfig(ReplayedLearnConfig, ClippedSurrogateLearnConfig):
    """Options for updates."""

    update_per_collect: int = 5
    """Updates after each collection of n_sample transitions, >= 1."""
    learning_rate: float = 1e-3
    """Step size at the start, > 0."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""


@dataclass(frozen=True, kw_only=True)
class PPOOffCollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 128
    """Transitions of a round on each rank, >= 1; None with n_episode; advantages reach as far as the round."""
    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


@dataclass(frozen=True, kw_only=True)
class PPOOffOtherConfig(QACOtherConfig):
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=1024))
    """The replay buffer; a larger one has older transitions."""


@dataclass(frozen=True, kw_only=True)
class PPOOffConfig(ReplayedConfig):
    """Everything that can be set of PPO from replay."""

    kind: ClassVar[str] = "ppo_offpolicy"
    nstep_return: bool = False
    """Train the critic on n-step returns with its newest values, instead of on those of the round of collection."""
    nstep: int = 3
    """Steps of these returns, >= 1; fewer at an episode's end; only with nstep_return."""
    learn: PPOOffLearnConfig = field(default_factory=PPOOffLearnConfig)
    """Options for updates."""
    collect: PPOOffCollectConfig = field(default_factory=PPOOffCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: PPOOffOtherConfig = field(default_factory=PPOOffOtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.nstep >= 1, "nstep", ">= 1", self.nstep)
        is_used = self.nstep_return or self.nstep == type(self).nstep
        require(is_used, "nstep", "left at its default without nstep_return", self.nstep)
        rewards = f"None with {self.kind}, which computes advantages when data are collected"
        require(self.reward_model.type is None, "reward_model.type", rewards, self.reward_model.type)
        self.learn.check_model(self.model)


@POLICY_REGISTRY.register("ppo_offpolicy")
class PPOOffPolicy(ActorCriticPolicy[PPOOffConfig]):
    """PPO from replay; discrete, multi-discrete, continuous and hybrid actions, action masks; any observations.

    The arguments are those of :class:`Policy`; a ``model`` has the methods ``compute_actor``, ``compute_critic`` and
    ``compute_actor_critic``, as :class:`VAC`.

    Example:
        >>> policy = PPOOffPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = PPOOffConfig
    config: PPOOffConfig
    on_policy: ClassVar[bool] = False
    demonstrations: ClassVar[str] = "refused"  # they hold no advantages

    def _init_collect(self) -> None:
        super()._init_collect()
        self._make_return_statistics()

    @torch.no_grad()
    def _get_train_sample(self, transitions: Mapping[str, Any]) -> dict[str, Any]:
        """Return transitions, leading axis S, with ``value``, ``advantage`` and ``return``, in units of the reward."""
        normal = self.normaliser.normalise_batch(nested.to(self.normaliser.tensors(transitions), self.device))  # type: ignore[arg-type]
        found = self._learning_data(normal, rl.time_major(normal["env_id"], normal["episode_id"]))
        added = {name: self._returns_of(found[name]) for name in ("value", "return")}
        added["advantage"] = found["advantage"]
        return {**transitions, **{name: column.cpu().numpy() for name, column in added.items()}}

    def _prepare_round(self, data: Batch) -> Batch:
        return self.prepare(data)

    def prepare(self, data: Batch) -> Batch:
        """Return minibatches ready for the loss, leading axes (B,) or (U, B), and renew the scale of the critic.

        Minibatches that are already prepared are returned unchanged.

        Args:
            data: Transitions of :meth:`_get_train_sample`; with ``nstep_return`` the reward summed over the steps, and
                ``discount``, gamma to the power of the steps taken.
        """
        if "is_prepared" in data:
            return data
        some = data["obs"] if data["return"].ndim == 1 else nested.index(data["obs"], 0)
        self._take_in_returns(data["return"].flatten(), some)
        scaled = {name: self._outputs_for(data[name]) for name in ("value", "return")}
        advantage = data["advantage"]
        if self.config.learn.adv_norm:
            rows = advantage.reshape(-1, advantage.shape[-1])
            advantage = standardise_over_ranks([rows])[0].view_as(advantage)
        return {**data, **scaled, "advantage": advantage, "is_prepared": torch.ones_like(advantage)}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        return self._update(self._minibatch_of(batch) | self.updater.schedules.tensors)

    def _minibatch_of(self, batch: Batch) -> Batch:
        """Return the columns of a prepared minibatch that the loss reads."""
        names = ("obs", "action", "log_prob", "value", "advantage", "return")
        minibatch = self._added_columns(batch) | {name: batch[name] for name in names}
        if self.config.nstep_return:
            minibatch["return"] = self._n_step_target(batch)
        return minibatch

    # the loss is that of PPO
    _policy_loss: Any = PPOPolicy._policy_loss
    _value_loss: Any = PPOPolicy._value_loss

    @torch.no_grad()
    def _n_step_target(self, data: Batch) -> Tensor:
        """Return the target of the critic's output by the n-step return, shape (B,)."""
        value = self._returns_of(self._values(data["next_obs"]))
        if not self.config.learn.ignore_done:
            value = value.masked_fill(data["terminated"].bool(), 0.0)
        return self._outputs_for(data["reward"] + data["discount"] * value)

    def _state_dict_collect(self) -> dict[str, Any]:
        state, statistics = super()._state_dict_collect(), getattr(self, "return_statistics", None)
        return state if statistics is None else state | {"return_statistics": statistics.state_dict()}

    def _load_state_dict_collect(self, state: Mapping[str, Any]) -> None:
        super()._load_state_dict_collect(state)
        if "return_statistics" in state:
            self.return_statistics.load_state_dict(state["return_statistics"])

    @property
    def nstep(self) -> int:
        """Steps of the returns that a buffer sums."""
        return self.config.nstep if self.config.nstep_return else 1

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "approx_kl", "clip_fraction"]
