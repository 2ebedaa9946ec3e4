"""The base of algorithms that learn from rollouts: their config and minibatches.

Shapes: S transitions of a rollout, B of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import moved, require
from lightning_ding.policy.actor_policy import ActorPolicy
from lightning_ding.policy.base.config import LearnConfig, PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig, make_optimizer
from lightning_ding.policy.base.policy import ConfigT
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.search_spaces import Choice, LogUniform, searched
from lightning_ding.utils.modes import IS_FIRST, STATE, not_implemented
from lightning_ding.utils.ranks import min_over_ranks
from lightning_ding.utils.schedules import ScheduleConfig
from lightning_ding.worker.config import CollectorConfig

USUAL_COLUMNS = frozenset(
    {
        *("obs", "action", "log_prob", "reward", "next_obs", "terminated", "truncated", "done", STATE, IS_FIRST),
        *("env_id", "episode_id", "policy_version", "collect_iter", "seed", "data_id", "is_expert"),
        *("value", "advantage", "return", "discount", "is_prepared", "mask"),
        *("IS", "priority", "replay_unique_id", "replay_buffer_idx"),
    }
)
"""Columns that collectors, buffers and these algorithms make; a subclass has added all others."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyOptimizerConfig(OptimizerConfig):
    """The class of the optimizer and its further arguments."""

    eps: float = 1e-5
    """Added to the denominator of the step, > 0; not for sgd."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyLearnConfig(LearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        discount_factor="set discount_factor of the policy",
        update_per_collect="a rollout gives epoch_per_collect times its size divided by batch_size updates",
    )

    batch_size: int | None = searched(64, Choice(32, 64, 128, 256, 512))
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    learning_rate: float = searched(3e-4, LogUniform(1e-5, 1e-2))
    """Step size at the start, > 0."""
    optimizer: OnPolicyOptimizerConfig = field(default_factory=OnPolicyOptimizerConfig)
    """The class of the optimizer."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    entropy_weight_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of entropy_weight that changes during the run; needs entropy_weight > 0."""
    grad_clip_norm: float | None = 0.5
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size, path = self.batch_size, "learn.entropy_weight_scheduler"
        require(size is None or size >= 1, "learn.batch_size", ">= 1 or None", size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(self.entropy_weight >= 0, "learn.entropy_weight", ">= 0", self.entropy_weight)
        self.entropy_weight_scheduler.check(path)
        is_used = self.entropy_weight > 0 or self.entropy_weight_scheduler == ScheduleConfig()
        require(is_used, path, "left at its default with entropy_weight 0", self.entropy_weight_scheduler.type)


@dataclass(frozen=True, kw_only=True)
class OnPolicyCollectConfig:
    """Options for collecting: the amount and the collector."""

    MOVED: ClassVar[dict[str, str]] = moved(discount_factor="set discount_factor of the policy")

    n_sample: int | None = None
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""
    n_episode: int | None = None
    """Episodes of a rollout on each rank, >= 1; None with n_sample."""
    unroll_len: int = 1
    """Steps of a training sample; these algorithms have no memory, so only 1."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector: sample with n_sample, episode with n_episode."""

    def __post_init__(self) -> None:
        one = "set when n_episode is None, and None when it is set"
        require((self.n_sample is None) != (self.n_episode is None), "collect.n_sample", one, self.n_sample)
        require(self.n_sample is None or self.n_sample >= 1, "collect.n_sample", ">= 1", self.n_sample)
        require(self.n_episode is None or self.n_episode >= 1, "collect.n_episode", ">= 1", self.n_episode)
        require(self.unroll_len == 1, "collect.unroll_len", "1", self.unroll_len)
        kind = self.collector.type
        other = "episode" if self.n_sample is not None else "sample"
        given = "n_sample" if self.n_sample is not None else "n_episode"
        require(kind != other, "collect.collector.type", f"a different one with collect.{given}", kind)
        waste = "False: the rollout holds whole episodes already"
        require(not self.collector.get_train_sample, "collect.collector.get_train_sample", waste, True)


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(PolicyConfig):
    """Everything that can be set of every on-policy algorithm."""

    MOVED: ClassVar[dict[str, str]] = PolicyConfig.MOVED | moved(
        action_space="set model.action_space",
        priority="there is no replay, so nothing to draw by priority",
        priority_IS_weight="there is no replay, so nothing to weigh",
        nstep="advantages reach as far as the rollout, see collect.gae_lambda",
        random_collect_size="a rollout must come from the policy itself",
    )

    discount_factor: float = searched(0.99, Choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
    """gamma, in [0, 1]."""

    def __post_init__(self) -> None:
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)


class OnPolicyPolicy(ActorPolicy[ConfigT]):
    """A policy that keeps the probabilities of its actions, and learns from rollouts.

    It learns once from each rollout that it collected, in a pass over shuffled minibatches. A subclass with
    ``on_policy`` false learns from the minibatches of a replay buffer, whose config is a :class:`ReplayedConfig`.

    A subclass implements ``_learning_data``, which gives the columns that its ``loss`` reads, and ``loss``. An update
    is a minibatch, so ``train_iter`` counts minibatches. Under DDP all ranks make equally many of them, however many
    transitions each has.
    """

    on_policy: ClassVar[bool] = True
    loss_columns: ClassVar[tuple[str, ...]] = ()
    """Usual columns of a transition that ``loss`` reads in addition, such as "next_obs"; those that a subclass adds to
    a transition are always there."""

    # ------------------------------------------------------------------ to implement

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of the data of ``_learning_data``, and the metrics to report, detached."""
        raise not_implemented(self, "loss")

    def _learning_data(self, rollout: Batch, sequences: rl.Sequences) -> Batch:
        """Return the columns that ``loss`` reads, leading axis S; ``advantage`` among them is perhaps standardised."""
        raise not_implemented(self, "_learning_data")

    def _added_columns(self, data: Mapping[str, Any]) -> Batch:
        """Return the columns that a subclass has added to transitions, and those that ``loss_columns`` names.

        Raises:
            ValueError: If transitions have no column of such a name.
        """
        for name in self.loss_columns:
            require(name in data, "loss_columns", f"names of columns, one of {sorted(data)}", name)
        return {name: column for name, column in data.items() if name not in USUAL_COLUMNS or name in self.loss_columns}

    def _standardised(self) -> str | None:
        """Return the column that is standardised in each minibatch, if any."""
        return None

    # ------------------------------------------------------------------ acting

    def _forward_collect(self, obs: Any) -> dict[str, Any]:  # type: ignore[override]
        logit = self._logit(obs)
        distribution = self._distribution(logit, obs)
        drawn = self._draw(distribution, logit)
        return {"action": self._to_env(drawn), "drawn": drawn, "log_prob": distribution.log_prob(drawn)}

    def _draw(self, distribution: rl.Distribution, logit: Any) -> Any:
        """Return actions to collect with, for the output of the network and the distribution that it describes."""
        return distribution.sample(self.rng)

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition; ``action`` is what was drawn, in the network's units."""
        transition = super()._process_transition(obs, output, timestep)
        return transition | {"action": output["drawn"], "log_prob": output["log_prob"]}

    # ------------------------------------------------------------------ learning

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        """Learn from a rollout with leading axis S in one pass; return the metrics of the last update."""
        sequences = rl.time_major(batch["env_id"], batch["episode_id"])
        return self._make_pass(self._learning_data(batch, sequences))[-1]

    def _make_pass(self, data: Batch) -> list[dict[str, Any]]:
        """Make an update on each minibatch of the learning data, and return the metrics of the updates."""
        if self.updater.notes is not None:
            self.updater.notes.data = data
        reports = []
        for minibatch in self._minibatches(data):
            reports.append(self._update(minibatch | self.updater.schedules.tensors))
            self.progress.train_iter += 1
        return reports

    def _update(self, minibatch: Batch) -> dict[str, Any]:
        """Make an update on a minibatch of the learning data, and return its metrics."""
        return self.updater.minimise(self.loss, minibatch)

    def _minibatches(self, data: Batch) -> Iterator[Batch]:
        """Yield shuffled minibatches of sizes that differ by one at most, as many on every rank."""
        size = nested.length(data)
        wanted = self.config.learn.batch_size or size
        number = min_over_ranks(max(1, round(size / wanted)))
        shuffled = nested.index(data, torch.from_numpy(self.rng.permutation(size)).to(self.device))
        name = self._standardised()
        parts = list(_parts(shuffled, size, number))
        if name is not None:
            for part, column in zip(parts, standardise_over_ranks([part[name] for part in parts]), strict=True):
                part[name] = column
        for part in parts:
            yield from nested.unbind(part)  # type: ignore[misc]

    # ------------------------------------------------------------------ attributes

    @property
    def batch_size(self) -> int:
        """Transitions of a minibatch; all those of a rollout without ``learn.batch_size``."""
        return self.config.learn.batch_size or self.config.collect.n_sample or 1

    @property
    def update_per_collect(self) -> int:
        """Return how many updates a rollout gives; for whole episodes, whose length is unknown, one per pass."""
        if not self.on_policy:
            return int(self.config.learn.update_per_collect)
        rows = self.config.collect.n_sample or 1
        return max(1, round(rows / self.batch_size))


def _parts(data: Batch, size: int, number: int) -> Iterator[Batch]:
    """Yield ``data`` as tables (M, B, ...) of minibatches: those with one transition more, then the others."""
    small, larger = divmod(size, number)
    cut = larger * (small + 1)
    if larger:
        yield nested.apply(lambda x: x[:cut].unflatten(0, (larger, small + 1)), data)
    yield nested.apply(lambda x: x[cut:].unflatten(0, (number - larger, small)), data)
