"""ACER: an actor-critic that learns from unrolls of older policies, with Retrace, bias correction and a trust region.

Paper: Wang et al. 2017 (https://arxiv.org/abs/1611.01224), sections 3.1 to 3.3; discrete actions.

Where this differs: all updates come from the replay buffer, whose unrolls are those of ``impala``; the paper alternates
them with on-policy ones. Actor and critic have separate networks and optimizers. The statistics of the distribution, by
which the trust region limits the gradient, are the log probabilities of the actions; the paper has the probabilities.
The limit holds for the gradient of each step, as in the paper. The gradient of the entropy is limited too. The average
policy follows the present one after each update by a share of ``learn.target_theta``. Adam replaces RMSProp.

Shapes: T steps of an unroll, B unrolls of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require, searched
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.config import LearnConfig, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.base.spaces import discrete_action, obs_shape
from lightning_ding.policy.impala import IMPALAConfig
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.qac import ActorAndCriticsConfig, QACOtherConfig
from lightning_ding.policy.replay_policy import make_target, polyak_update
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class ACERModelConfig(ActorAndCriticsConfig):
    """The actor and the critic, which values all actions."""

    action_shape: int | None = None
    """Number of actions; None means that it is taken from the env."""
    action_start: int | None = None
    """Smallest action of a Discrete space; None means the env's, or 0 without an env."""


@dataclass(frozen=True, kw_only=True)
class ACERLearnConfig(LearnConfig):
    """Options for updates."""

    update_per_collect: int = 4
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = searched(16, "choice(8, 16, 32, 64)")
    """Unrolls of a minibatch on each rank, >= 1."""
    learning_rate_actor: float = searched(5e-4, "log(1e-5, 1e-2)")
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = searched(5e-4, "log(1e-5, 1e-2)")
    """Step size of the critic's optimizer, > 0."""
    entropy_weight: float = 0.0001
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    c_clip_ratio: float = 10.0
    """Upper bound of the ratio of new to old probability of the action taken, > 0; what exceeds it is corrected by the
    critic."""
    trust_region: bool = True
    """Limit how fast the policy leaves the average policy."""
    trust_region_value: float = 1.0
    """Largest rate at which the divergence from the average policy may grow, >= 0; needs trust_region."""
    target_theta: float = 0.01
    """Share of the present policy in the average policy after every update, in (0, 1]; needs trust_region."""
    grad_clip_norm: float | None = 10.0
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("update_per_collect", "batch_size"):
            require(getattr(self, name) >= 1, f"learn.{name}", ">= 1", getattr(self, name))
        for name in ("learning_rate_actor", "learning_rate_critic", "c_clip_ratio"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        for name in ("entropy_weight", "trust_region_value"):
            require(getattr(self, name) >= 0, f"learn.{name}", ">= 0", getattr(self, name))
        require(0 < self.target_theta <= 1, "learn.target_theta", "in (0, 1]", self.target_theta)
        got = (self.trust_region_value, self.target_theta)
        default = "left at their defaults without learn.trust_region"
        require(self.trust_region or got == (1.0, 0.01), "learn.trust_region_value, learn.target_theta", default, got)


@dataclass(frozen=True, kw_only=True)
class ACEROtherConfig(QACOtherConfig):
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="sequence", replay_buffer_size=50_000)
    )
    """The replay buffer, which gives sequences."""


@dataclass(frozen=True, kw_only=True)
class ACERConfig(IMPALAConfig):
    """Everything that can be set of ACER."""

    model: ACERModelConfig = field(default_factory=ACERModelConfig)  # type: ignore[assignment]
    """The actor and the critic."""
    learn: ACERLearnConfig = field(default_factory=ACERLearnConfig)  # type: ignore[assignment]
    """Options for updates."""
    other: ACEROtherConfig = field(default_factory=ACEROtherConfig)  # type: ignore[assignment]
    """Replay."""


class ACERBatch(TypedDict, total=False):
    """A minibatch of B unrolls of T steps, and what ``_process_transition`` of a subclass adds."""

    obs: Any
    """Observations, leading axes (T, B)."""
    action: Tensor
    """Actions taken, counted from 0, shape (T, B)."""
    behaviour_log_p: Tensor
    """Log probabilities of all actions by the policy that acted, shape (T, B, A)."""
    reward: Tensor
    """Rewards, shape (T, B)."""
    terminated: Tensor
    """Whether a step terminated its episode, after which the next one follows, shape (T, B)."""
    mask: Tensor
    """Whether a step is real; false where an unroll is over, shape (T, B)."""
    last_obs: Any
    """True next observations of the last step of each unroll, leading axis (B,)."""
    q_target: Tensor
    """Retrace targets of the values of the actions taken, shape (T, B); see :meth:`ACERPolicy.targets`."""
    direction: Tensor
    """Gradient of the objective by the log probabilities, shape (T, B, A); likewise."""


@POLICY_REGISTRY.register("acer")
class ACERPolicy(OnPolicyPolicy[ACERConfig]):
    """ACER for discrete actions; vector, image and dict observations; action masks.

    A network passed as ``model`` must have the modules ``actor`` and ``critic`` and the methods of
    :class:`DiscreteQAC`; its first critic counts.

    Example:
        >>> policy = ACERPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = ACERConfig
    config: ACERConfig
    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape")
    parts_of_model: ClassVar[tuple[str, ...]] = ("compute_actor", "compute_critic", "actor", "critic")
    on_policy: ClassVar[bool] = False
    learns_from_sequences: ClassVar[bool] = True
    model: Any
    target_model: Any  # the average policy

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.target_model = make_target(self.model)
        self._target_in_eval_mode = InEvalMode(self.target_model, where_it_matters=True)
        rates = (self.model.actor, learn.learning_rate_actor), (self.model.critic, learn.learning_rate_critic)
        self.updater.optimizers = [make_optimizer(learn.optimizer, part.parameters(), rate) for part, rate in rates]

    def _logit(self, obs: Any) -> Tensor:
        return self.model.compute_actor(obs)["logit"]  # type: ignore[no-any-return]

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        distribution: Any = self._distribution(self._logit(obs), obs)
        drawn = distribution.sample(self.noise_source)
        acted = {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}
        return {**acted, "behaviour_log_p": distribution.log_p}

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition, with the probabilities of all actions."""
        transition = super()._process_transition(obs, output, timestep)
        return transition | {"behaviour_log_p": output["behaviour_log_p"]}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        batch = {**batch, **self.targets(batch)}
        report = self.updater.minimise(self.loss_of_actor, batch)
        report |= self.updater.minimise(self.loss_of_critic, batch, 1)
        if self.config.learn.trust_region:
            polyak_update(self.model, self.target_model, self.config.learn.target_theta)
        return {**report, "total_loss": report["policy_loss"] + report["value_loss"]}

    def prepare(self, data: Batch) -> Any:
        """Return an :class:`ACERBatch`, from unrolls with leading axes (T, B) and a ``mask``."""
        if "last_obs" in data:
            return data
        needed = "of unrolls with a 'mask', which a buffer of the type 'sequence' gives"
        require("mask" in data, "batch", needed, sorted(data))
        names = ("obs", "action", "behaviour_log_p", "reward", "terminated", "mask")
        last_obs = nested.index(data["next_obs"], -1)  # the padding of a shorter unroll repeats its last step
        return self._added_columns(data) | {name: data[name] for name in names} | {"last_obs": last_obs}

    @torch.no_grad()
    def targets(self, batch: ACERBatch) -> dict[str, Tensor]:
        """Return ``q_target`` and ``direction`` of :class:`ACERBatch`, and ``kl`` from the average policy, (T, B)."""
        learn, mask, obs = self.config.learn, batch["mask"], _flat(batch["obs"])
        with self._in_eval_mode:
            log_p, q = (one.unflatten(0, mask.shape) for one in (self._log_p(self.model, obs), self._q(obs)))
            last_value = self._state_value(batch["last_obs"]).unsqueeze(0)
        value, index = (log_p.exp() * q).sum(-1), batch["action"].unsqueeze(-1)
        is_last = torch.cat([~mask[1:], torch.ones_like(mask[:1])])
        next_value = torch.where(is_last, last_value, torch.cat([value[1:], last_value]))
        discount = self.config.discount_factor * torch.logical_not(batch["terminated"])
        log_ratio = (log_p - batch["behaviour_log_p"]).gather(-1, index).squeeze(-1)
        ended, taken = is_last | batch["terminated"].bool(), q.gather(-1, index).squeeze(-1)
        target = rl.retrace(log_ratio, batch["reward"], taken, value, next_value, discount, ended)
        direction = rl.acer_gradient(log_p, batch["behaviour_log_p"], batch["action"], q, target, learn.c_clip_ratio)
        entropy = -rl.expectation(log_p, log_p).unsqueeze(-1)
        direction = direction - learn.entropy_weight * (log_p.exp() * log_p + log_p.exp() * entropy)
        if not learn.trust_region:
            return {"q_target": target, "direction": direction}
        with self._target_in_eval_mode:
            average = self._log_p(self.target_model, obs).unflatten(0, mask.shape)
        direction = rl.within_trust_region(direction, average, learn.trust_region_value)
        return {"q_target": target, "direction": direction, "kl": rl.expectation(average, average - log_p)}

    def loss_of_actor(self, batch: ACERBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a loss whose gradient by the log probabilities is minus ``direction``, and the metrics to report.

        Returns:
            The loss, and detached scalars: ``policy_loss``, ``entropy_loss``, and ``kl_div`` with a trust region, all
            of them means over the real steps, in units of ``unroll_len`` times B.
        """
        log_p = self._log_p(self.model, _flat(batch["obs"]))
        weight = self._weight(batch).flatten()
        loss = -(weight * (batch["direction"].flatten(0, 1) * log_p).sum(-1)).sum()
        report = {"policy_loss": loss, "entropy_loss": -(weight * rl.expectation(log_p, log_p)).sum()}
        if "kl" in batch:
            report["kl_div"] = (weight * batch["kl"].flatten()).sum()  # type: ignore[typeddict-item]
        return loss, {name: one.detach() for name, one in report.items()}

    def loss_of_critic(self, batch: ACERBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half the squared errors of the values of the actions taken, and ``value_loss`` to report."""
        q = rl.take_action_value(self._q(_flat(batch["obs"])), batch["action"].flatten())
        weight = self._weight(batch).flatten()
        loss = 0.5 * (weight * (q - batch["q_target"].flatten()).square()).sum()
        return loss, {"value_loss": loss.detach()}

    def _weight(self, batch: ACERBatch) -> Tensor:
        """Return the weight of each step, shape (T, B): equal for all real steps of all minibatches."""
        mask = batch["mask"]
        return mask.to(batch["reward"]) / (self.config.unroll_len * mask.shape[1])

    def _log_p(self, model: Any, obs: Any) -> Tensor:
        """Return the log probabilities of all actions, shape (B, A); see :class:`Categorical` for illegal ones."""
        distribution: Any = self._distribution(model.compute_actor(obs)["logit"], obs)
        return distribution.log_p  # type: ignore[no-any-return]

    def _q(self, obs: Any) -> Tensor:
        """Return the values of all actions, shape (B, A)."""
        return self.model.compute_critic(obs)["q_value"][0]  # type: ignore[no-any-return]

    def _state_value(self, obs: Any) -> Tensor:
        """Return the mean value of the policy's actions, shape (B,)."""
        return rl.expectation(self._log_p(self.model, obs), self._q(obs))

    def _init_spaces(self) -> None:
        Policy._init_spaces(self)  # discrete actions have no bounds

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise TypeError(f"acer needs a Discrete action space, got {action_space}; impala, dqn and ppo take it")
        return {"obs_shape": obs_shape(observation_space), **discrete_action(action_space, "acer")}

    @property
    def sample_options(self) -> dict[str, Any]:
        """Arguments of a replay buffer's ``sample``."""
        length = self.config.unroll_len
        return {"sequence": length, "period": length, "across_episodes": True}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"target_model": self.target_model.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.target_model.load_state_dict(state["target_model"])

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss", "kl_div"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network of an actor and critics of all actions."""
        return "discrete_qac", ["lightning_ding.model.discrete_qac"]


def _flat(obs: Any) -> Any:
    """Return observations with the axes (T, B) as one."""
    return nested.apply(lambda leaf: leaf.flatten(0, 1), obs)
