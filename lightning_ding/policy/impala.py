"""IMPALA: an actor-critic that learns from unrolls of older policies, corrected by V-trace.

Paper: Espeholt et al. 2018 (https://arxiv.org/abs/1802.01561), sections 4.1 and 4.2.

Where this differs: collecting and learning take turns, so the distance between the policies comes from the replay
buffer and from several updates a round. The steps of an env are cut into consecutive unrolls of ``unroll_len`` steps,
which cross the ends of episodes, as in the paper; but an unroll ends at a time limit, and the next one begins there, so
that it bootstraps from the true next observation, as at the end of every unroll. The steps that it lacks are padding,
which is left out. The loss is not a sum over steps, but this sum
divided by ``unroll_len`` times the number of unrolls, so a real step has the same weight in all minibatches.
``lambda_`` multiplies the trace coefficients (remark 2); the paper's value is 1. DI-engine is the source of the
defaults of ``lambda_``, ``learning_rate``, ``entropy_weight`` and the bounds of the ratios, and of the optimizer Adam
instead of RMSProp.

Shapes: T steps of an unroll, B unrolls of a minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.round import Batch
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.on_policy_options import ActorCriticModelConfig, OnPolicyLearnConfig
from lightning_ding.policy.qac import QACOtherConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig

UNIFORM = "minibatches are drawn uniformly, because the loss corrects for the policy that acted only"


@dataclass(frozen=True, kw_only=True)
class ReplayedLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = {
        key: advice for key, advice in OnPolicyLearnConfig.MOVED.items() if key != "update_per_collect"
    }

    update_per_collect: int = 4
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 64
    """Transitions or unrolls of a minibatch on each rank, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.update_per_collect >= 1, "learn.update_per_collect", ">= 1", self.update_per_collect)


@dataclass(frozen=True, kw_only=True)
class ReplayedConfig(PolicyConfig):
    """The config of every such algorithm."""

    MOVED: ClassVar[dict[str, str]] = PolicyConfig.MOVED | moved(
        action_space="set model.action_space",
        priority=UNIFORM,
        priority_IS_weight=UNIFORM,
        random_collect_size="the probability of each action is needed, so the policy itself must act",
    )

    discount_factor: float = searched(0.99, "choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)")
    """gamma, in [0, 1]."""
    model: ActorCriticModelConfig = field(default_factory=ActorCriticModelConfig)
    """The network."""
    learn: ReplayedLearnConfig = field(default_factory=ReplayedLearnConfig)
    """Options for updates."""
    collect: ReplayCollectConfig = field(default_factory=ReplayCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: QACOtherConfig = field(default_factory=QACOtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)


@dataclass(frozen=True, kw_only=True)
class IMPALALearnConfig(ReplayedLearnConfig):
    """Options for updates."""

    batch_size: int = searched(16, "choice(8, 16, 32, 64)")
    """Unrolls of a minibatch on each rank, >= 1."""
    learning_rate: float = 5e-4
    """Step size at the start, > 0."""
    entropy_weight: float = 0.0001
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    value_weight: float = 0.5
    """Weight of the mean squared error of the critic, >= 0."""
    lambda_: float = 0.95
    """Decay of later errors in the targets in addition to gamma, in [0, 1]."""
    rho_clip_ratio: float = 1.0
    """Upper bound of the ratio of new to old probability in the error of a step, > 0."""
    c_clip_ratio: float = 1.0
    """Upper bound of the ratio with which later errors count, > 0."""
    rho_pg_clip_ratio: float = 1.0
    """Upper bound of the ratio in the policy gradient, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)
        require(0 <= self.lambda_ <= 1, "learn.lambda_", "in [0, 1]", self.lambda_)
        for name in ("rho_clip_ratio", "c_clip_ratio", "rho_pg_clip_ratio"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class IMPALACollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 512
    """Transitions of a round on each rank, >= 1; None with n_episode."""


@dataclass(frozen=True, kw_only=True)
class IMPALAOtherConfig(QACOtherConfig):
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="sequence", replay_buffer_size=2048)
    )
    """The replay buffer, which gives sequences; a larger one has older unrolls."""


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(ReplayedConfig):
    """Everything that can be set of IMPALA."""

    unroll_len: int = 32
    """Steps of an unroll, >= 1; fewer before a time limit."""
    learn: IMPALALearnConfig = field(default_factory=IMPALALearnConfig)
    """Options for updates."""
    collect: IMPALACollectConfig = field(default_factory=IMPALACollectConfig)
    """Options for collecting: the amount and the collector."""
    other: IMPALAOtherConfig = field(default_factory=IMPALAOtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.unroll_len >= 1, "unroll_len", ">= 1", self.unroll_len)


class IMPALABatch(TypedDict, total=False):
    """A minibatch of B unrolls of T steps, and what ``_process_transition`` of a subclass adds."""

    obs: Any
    """Observations, leading axes (T, B)."""
    action: Any
    """Actions as they were drawn, in the network's units, leading axes (T, B)."""
    log_prob: Tensor
    """Log probabilities of the actions by the policy that acted, shape (T, B)."""
    reward: Tensor
    """Rewards, shape (T, B)."""
    terminated: Tensor
    """Whether a step terminated its episode, after which the next one follows, shape (T, B)."""
    mask: Tensor
    """Whether a step is real; false where an unroll is over, shape (T, B)."""
    last_obs: Any
    """True next observations of the last step of each unroll, leading axis (B,)."""
    entropy_weight: Tensor
    """In place of ``learn.entropy_weight``; with a schedule."""


@POLICY_REGISTRY.register("impala")
class IMPALAPolicy(OnPolicyPolicy[IMPALAConfig]):
    """IMPALA; discrete, multi-discrete, continuous and hybrid actions, action masks; all kinds of observations.

    The arguments are those of :class:`Policy`; a ``model`` has the methods ``compute_actor``, ``compute_critic`` and
    ``compute_actor_critic``, as :class:`VAC`.

    Example:
        >>> policy = IMPALAPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = IMPALAConfig
    config: IMPALAConfig
    parts_of_model: ClassVar[tuple[str, ...]] = ("compute_actor", "compute_critic", "compute_actor_critic")
    on_policy: ClassVar[bool] = False
    learns_from_sequences: ClassVar[bool] = True

    def _logit(self, obs: Any) -> Any:
        return self.model.compute_actor(obs)["logit"]  # type: ignore[operator]

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        return self._update(batch | self.updater.schedules.tensors)

    def prepare(self, data: Batch) -> Any:
        """Return an :class:`IMPALABatch`, from unrolls with leading axes (T, B) and a ``mask``."""
        if "last_obs" in data:
            return data
        needed = "of unrolls with a 'mask', which a buffer of the type 'sequence' gives"
        require("mask" in data, "batch", needed, sorted(data))
        names = ("obs", "action", "log_prob", "reward", "terminated", "mask")
        last_obs = nested.index(data["next_obs"], -1)  # the padding of a shorter unroll repeats its last step
        return self._added_columns(data) | {name: data[name] for name in names} | {"last_obs": last_obs}

    def loss(self, batch: IMPALABatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and the metrics to report.

        Returns:
            The loss, and detached scalars: ``total_loss``, ``policy_loss``, ``value_loss``, ``entropy_loss``. Each is a
            sum over the real steps, divided by ``unroll_len`` B.
        """
        learn, mask = self.config.learn, batch["mask"]
        distribution, log_prob, value = self._output(batch)
        found = self._vtrace(batch, log_prob.detach(), value.detach())
        weight = mask.to(value) / (self.config.unroll_len * mask.shape[1])
        policy_loss = -(weight * log_prob * found.advantage).sum()
        value_loss = (weight * (value - found.target).square()).sum()
        entropy = (weight * distribution.entropy().view(mask.shape)).sum()
        loss = (
            policy_loss + learn.value_weight * value_loss - batch.get("entropy_weight", learn.entropy_weight) * entropy
        )
        report = {"total_loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy}
        return loss, {name: one.detach() for name, one in report.items()}

    def _output(self, batch: IMPALABatch) -> tuple[Any, Tensor, Tensor]:
        """Return the distribution of all actions, and the log probabilities and values of the steps, both (T, B)."""
        obs, action = (nested.apply(lambda x: x.flatten(0, 1), one) for one in (batch["obs"], batch["action"]))
        output = self.model.compute_actor_critic(obs)  # type: ignore[operator]
        distribution, shape = self._distribution(output["logit"], obs), batch["mask"].shape
        return distribution, distribution.log_prob(action).view(shape), output["value"].view(shape)

    @torch.no_grad()
    def _vtrace(self, batch: IMPALABatch, log_prob: Tensor, value: Tensor) -> rl.VTrace:
        """Return the targets and advantages for the current policy and its values, both (T, B)."""
        learn, mask = self.config.learn, batch["mask"]
        with self._in_eval_mode:
            if self._in_eval_mode.matters:  # the given numbers are those of training mode
                _, log_prob, value = self._output(batch)
            last_value = self.model.compute_critic(batch["last_obs"])["value"].unsqueeze(0)  # type: ignore[operator]
        is_last = torch.cat([~mask[1:], torch.ones_like(mask[:1])])
        next_value = torch.where(is_last, last_value, torch.cat([value[1:], last_value]))
        ended = is_last | batch["terminated"].bool()
        discount = self.config.discount_factor * torch.logical_not(batch["terminated"])
        bounds = (learn.rho_clip_ratio, learn.c_clip_ratio, learn.rho_pg_clip_ratio)
        log_ratio = log_prob - batch["log_prob"]
        return rl.vtrace(log_ratio, batch["reward"], value, next_value, discount, ended, learn.lambda_, *bounds)

    @property
    def sample_options(self) -> dict[str, Any]:
        """Arguments of a replay buffer's ``sample``."""
        length = self.config.unroll_len
        return {"sequence": length, "period": length, "across_episodes": True}

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor-critic network."""
        return "vac", ["lightning_ding.model.vac"]
