"""R2D2: Q-learning with a recurrent network, from sequences with stored states and a burn-in.

Paper: Kapturowski et al. 2019 (https://openreview.net/forum?id=r1lyTjAqYX): stored state and burn-in, section 3;
rescaled values, n-step double Q-learning and priorities of sequences, section 2.3. Rescaling: Pohlen et al. 2018
(https://arxiv.org/abs/1805.11593).

Sequences begin with their episode and then at every ``sequence_period``-th step, so neighbours overlap; they end with
their episode, and the steps that they lack are padding, which is left out.

Where this differs: a sequence that begins with its episode has no burn-in, because its state is exact. Its first
``burnin_step + sequence_period`` steps belong to no other sequence, so they have half of the weight of later steps. A
sequence has ``nstep - 1`` more steps than ``burnin_step + learn_unroll_len``, so that every step that is learned from
has a whole n-step return. The exponents of the priorities and of the importance-sampling weights are those of the
buffer, 0.6 and 0.4, where the paper has 0.9 and 0.6. The target follows softly (``target_theta`` 0.001), where the
paper copies the network every 2,500 updates. A time limit bootstraps from the value of the true final observation, with
the state that leads to it. All envs explore with one epsilon. The network reads observations only, not the last action
and reward.

Shapes: T steps of a sequence, B sequences, A actions, S size of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.recurrent import EnvStates, RecurrentModelConfig, act, memory_of, with_memory
from lightning_ding.policy.q_learning import (
    QLearningCollectConfig,
    QLearningConfig,
    QLearningLearnConfig,
    QLearningModelConfig,
    QLearningOtherConfig,
    QLearningPolicy,
)
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import EpsConfig
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class R2D2ModelConfig(RecurrentModelConfig, QLearningModelConfig):
    """The Q-network: an encoder, recurrent layers and a head."""

    dueling: bool = True
    """Split the head into a state value and advantages."""


@dataclass(frozen=True, kw_only=True)
class R2D2LearnConfig(QLearningLearnConfig):
    """Options for updates."""

    update_per_collect: int = 1
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = searched(64, "choice(16, 32, 64, 128)")
    """Sequences of a minibatch on each rank, >= 1."""
    learning_rate: float = 1e-4
    """Step size, > 0."""
    target_theta: float | None = 0.001
    """Step size of the soft update of the target after every update, in (0, 1]; None copies the network instead."""
    value_rescale: bool = True
    """Learn values that are rescaled by h(x) = sign(x) (sqrt(abs(x) + 1) - 1) + 0.001 x."""
    loss: rl.TDLoss = "mse"
    """Loss of the temporal-difference error."""


@dataclass(frozen=True, kw_only=True)
class R2D2CollectConfig(QLearningCollectConfig):
    """Options for collecting: the amount and the collector."""

    MOVED: ClassVar[dict[str, str]] = moved(
        env_num="the state of each env is kept for as many envs as there are",
        traj_len_inf="the buffer draws sequences from whole episodes",
    )

    n_sample: int | None = 64
    """Transitions of a round on each rank, >= 1; None with n_episode."""
    unroll_len: int = 1
    """Steps of a collected item; only 1, because the buffer draws the sequences, see learn_unroll_len."""


@dataclass(frozen=True, kw_only=True)
class R2D2OtherConfig(QLearningOtherConfig):
    """Exploration and replay, which the sections learn and collect do not contain."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The epsilon schedule."""
    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="prioritised_sequence", replay_buffer_size=100_000)
    )
    """The replay buffer, one that draws sequences: prioritised_sequence, or without priority sequence."""


@dataclass(frozen=True, kw_only=True)
class R2D2Config(QLearningConfig):
    """Everything that can be set of R2D2."""

    nstep: int = 5
    """Steps of the return, >= 1; fewer at an episode's end."""
    discount_factor: float = searched(0.997, "choice(0.98, 0.99, 0.995, 0.997, 0.999)")
    """gamma, in [0, 1]."""
    priority: bool = True
    """Draw sequences by 0.9 times their largest and 0.1 times their mean error."""
    priority_IS_weight: bool = True  # noqa: N815 - a documented name
    """Weigh sequences by the buffer's importance-sampling weights; needs priority."""
    burnin_step: int = 20
    """First steps of a sequence that only bring the state up to date, >= 0; none where its episode begins with it."""
    learn_unroll_len: int = 80
    """Steps of a sequence that are learned from, >= 1."""
    sequence_period: int | None = None
    """Steps between the beginnings of two sequences, >= 1; None means half of learn_unroll_len, as in the paper."""
    model: R2D2ModelConfig = field(default_factory=R2D2ModelConfig)
    """The Q-network."""
    learn: R2D2LearnConfig = field(default_factory=R2D2LearnConfig)
    """Options for updates."""
    collect: R2D2CollectConfig = field(default_factory=R2D2CollectConfig)
    """Options for collecting: the amount and the collector."""
    other: R2D2OtherConfig = field(default_factory=R2D2OtherConfig)
    """Exploration and replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.burnin_step >= 0, "burnin_step", ">= 0", self.burnin_step)
        require(self.learn_unroll_len >= 1, "learn_unroll_len", ">= 1", self.learn_unroll_len)
        allowed = f"in [1, learn_unroll_len] = [1, {self.learn_unroll_len}] or None"
        period = self.sequence_period
        require(period is None or 1 <= period <= self.learn_unroll_len, "sequence_period", allowed, period)


class R2D2Batch(TypedDict, total=False):
    """A minibatch of B sequences of T steps; those after the end of an episode are padding."""

    obs: Any
    """Observations, leading axes (T, B)."""
    action: Tensor
    """Actions taken, shape (T, B)."""
    reward: Tensor
    """Rewards of single steps, shape (T, B)."""
    next_obs: Any
    """True next observations, leading axes (T, B)."""
    terminated: Tensor
    """Whether a step terminated its episode, shape (T, B)."""
    mask: Tensor
    """Whether a step is real, shape (T, B)."""
    recurrent_state: Tensor
    """State of the network before the first step, shape (B, S)."""
    is_first: Tensor
    """Whether the first step is that of an episode, shape (B,)."""
    IS: Tensor
    """Importance-sampling weights, shape (B,); with ``priority_IS_weight``."""
    priority: Tensor
    """Priorities of the sequences, shape (B,); with ``priority``."""


@POLICY_REGISTRY.register("r2d2")
@with_memory
class R2D2Policy(QLearningPolicy[R2D2Config]):
    """R2D2 for discrete actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`DRQN`. The policy keeps the state
    of each env between the calls of its modes, until ``reset`` with the env's number;
    ``forward`` keeps none and acts as at the start of an episode.

    Example:
        >>> policy = R2D2Policy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
        >>> policy.eval_mode.reset([1])  # an episode of env 1 ended
    """

    config_class: ClassVar[type[PolicyConfig]] = R2D2Config
    learns_from_sequences: ClassVar[bool] = True
    _collecting: EnvStates
    _evaluating: EnvStates

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return epsilon-greedy actions and the states before the observations; ``eps`` overrides the schedule."""
        epsilon = self._epsilon_at(self.progress.env_step) if eps is None else eps
        output = act(self, self._collecting, obs)
        ((q, mask),) = self._values(output, obs)
        action = rl.epsilon_greedy(q.cpu().numpy(), epsilon, self.rng, None if mask is None else mask.cpu().numpy())
        return {"action": self.action_start.to_env(torch.from_numpy(np.asarray(action))), **memory_of(output)}

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        ((q, _),) = self._values(act(self, self._evaluating, obs), obs)
        return {"action": self.action_start.to_env(q.argmax(1))}

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return the minibatch: the buffer gives what the loss reads, and the target is computed with the loss."""
        return dict(data)

    def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def loss(self, batch: R2D2Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the temporal-difference loss of a minibatch of sequences and its metrics.

        Returns:
            The loss: a sum over the steps that are learned from, divided by ``learn_unroll_len`` B, so that every step
            has the same weight in all minibatches. The metrics, detached: ``total_loss``, and the means
            ``q_value`` and ``target_q_value``; with ``priority`` also ``priority`` (B,), which does not change for a
            sequence without such steps.
        """
        learned, (output, value) = self._learned(batch), self._unrolled(batch)
        target = self._targets(batch, value, self.config.nstep)
        prediction = rl.take_action_value(output.flatten(0, 1), batch["action"].flatten()).view_as(target)
        weight = self._step_weights(batch, learned, target)
        errors = (prediction.flatten(), target.flatten(), weight.flatten())
        scale = weight.shape[0] / self.config.learn_unroll_len  # of a mean over all T steps
        loss = scale * rl.td_loss(*errors, self.config.learn.loss)
        return loss, self._report(batch, loss, prediction, target, learned)

    def _unrolled(self, batch: R2D2Batch) -> tuple[Tensor, Tensor]:
        """Return the values of all actions, shape (T, B, A), and those to bootstrap from, see ``sequence_targets``."""
        obs = nested.concatenate([nested.index(batch["obs"], slice(1)), batch["next_obs"]])  # of T + 1 steps
        network: Any = self.model
        output: Tensor = network.after_burn_in(
            obs, batch["recurrent_state"], self.config.burnin_step, batch["is_first"]
        )
        return output[:-1], self._bootstrap(batch, obs, output)

    def _step_weights(self, batch: R2D2Batch, learned: Tensor, target: Tensor) -> Tensor:
        """Return the weight of each step, shape (T, B): 0 where nothing is learned."""
        given = self._weight(batch)
        return learned.to(target) if given is None else learned * given

    def _report(
        self, batch: R2D2Batch, loss: Tensor, prediction: Tensor, target: Tensor, learned: Tensor
    ) -> dict[str, Tensor]:
        count = learned.sum().clamp(min=1)
        report = {"total_loss": loss.detach(), "q_value": (prediction.detach() * learned).sum() / count}
        report["target_q_value"] = (target * learned).sum() / count
        if self.config.priority:
            priority = rl.sequence_priority(target - prediction, learned)
            report["priority"] = torch.where(learned.any(0), priority, batch["priority"].to(priority))
        return report

    def _learned(self, batch: R2D2Batch) -> Tensor:
        """Return which steps are learned from, shape (T, B)."""
        step = torch.arange(len(batch["mask"]), device=batch["mask"].device).unsqueeze(1)
        is_warm = (step >= self.config.burnin_step) | batch["is_first"].bool()
        learned: Tensor = batch["mask"].bool() & is_warm
        return learned & (step < self._sequence_length() - (self.config.nstep - 1))

    @torch.no_grad()
    def _bootstrap(self, batch: R2D2Batch, obs: Any, output: Tensor) -> Tensor:
        """Return the values of the observations of T + 1 steps, shape (T + 1, B), not rescaled."""
        learn = self.config.learn
        target_q = self.target_model(obs, batch["recurrent_state"])["logit"]
        if learn.double_q and self._in_eval_mode.matters:
            with self._in_eval_mode:
                output = self.model(obs, batch["recurrent_state"])["logit"]
        chooser = output if learn.double_q else target_q
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        value: Tensor = target_q.gather(2, rl.masked(chooser, mask).argmax(2, keepdim=True)).squeeze(2)
        return rl.value_unscale(value) if learn.value_rescale else value

    def _targets(self, batch: R2D2Batch, value: Tensor, nstep: int) -> Tensor:
        """Return the targets of all steps, shape (T, B), rescaled with ``value_rescale``."""
        learn = self.config.learn
        terminated = torch.zeros_like(batch["terminated"]) if learn.ignore_done else batch["terminated"]
        steps = (self._rewards(batch), terminated, batch["mask"], value)
        target = rl.sequence_targets(*steps, self._discount_factors(batch), nstep)
        return rl.value_rescale(target) if learn.value_rescale else target

    def _rewards(self, batch: R2D2Batch) -> Tensor:
        """Return the rewards of single steps to learn from, shape (T, B)."""
        return batch["reward"]

    def _discount_factors(self, batch: R2D2Batch) -> float | Tensor:
        """Return gamma, or that of each sequence, shape (B,)."""
        return self.config.discount_factor

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered recurrent Q-network."""
        return "drqn", ["lightning_ding.model.drqn"]

    # ------------------------------------------------------------------ attributes

    def _sequence_length(self) -> int:
        return self.config.burnin_step + self.config.learn_unroll_len + self.config.nstep - 1

    @property
    def sample_options(self) -> dict[str, Any]:
        """Return the arguments of the buffer's ``sample``; the rewards are summed here, not by the buffer."""
        period = self.config.sequence_period or max(1, self.config.learn_unroll_len // 2)
        window = {"sequence": self._sequence_length(), "burn_in": self.config.burnin_step, "period": period}
        return {"n_step": 1, "discount_factor": self.config.discount_factor, **window}
