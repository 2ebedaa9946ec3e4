"""The parts of a config that all algorithms which learn from replay share: every field, its range, its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import moved, require
from lightning_ding.policy.config import EvalConfig, PolicyConfig
from lightning_ding.policy.learn_config import LearnConfig
from lightning_ding.worker_config import CollectorConfig


@dataclass(frozen=True)
class ReplayLearnConfig(LearnConfig):
    """How updates are made."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        discount_factor="set discount_factor beside nstep, not in learn"
    )

    update_per_collect: int = 1
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 64
    """Transitions of a minibatch on each rank, >= 1."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs whose envs end by a time limit only."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.update_per_collect >= 1, "learn.update_per_collect", ">= 1", self.update_per_collect)
        require(self.batch_size >= 1, "learn.batch_size", ">= 1", self.batch_size)


@dataclass(frozen=True)
class ReplayCollectConfig:
    """How much is collected, and by which collector."""

    n_sample: int = 1
    """Transitions of a round on each rank, >= 1."""
    unroll_len: int = 1
    """Steps of a training sample; there is no memory, so only 1."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.n_sample >= 1, "collect.n_sample", ">= 1", self.n_sample)
        require(self.unroll_len == 1, "collect.unroll_len", "1 for networks without memory", self.unroll_len)


@dataclass(frozen=True)
class ReplayConfig(PolicyConfig):
    """What can be set of every algorithm that learns from replay."""

    nstep: int | None = 1
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and takes
    batches without discount, which are made by hand, for single steps."""
    discount_factor: float = 0.99
    """gamma, in [0, 1]."""
    priority: bool = False
    """Tell the buffer the size of each error; needs a prioritised buffer."""
    priority_IS_weight: bool = False  # noqa: N815 - DI-engine's name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    random_collect_size: int = 0
    """Transitions collected with random actions before the first update on each rank, >= 0."""
    learn: ReplayLearnConfig = field(default_factory=ReplayLearnConfig)
    """How updates are made."""
    collect: ReplayCollectConfig = field(default_factory=ReplayCollectConfig)
    """How much is collected, and by which collector."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """How the policy is evaluated."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.nstep is None or self.nstep >= 1, "nstep", ">= 1 or None", self.nstep)
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
        require(self.priority or not self.priority_IS_weight, "priority_IS_weight", "False without priority", True)
        require(self.random_collect_size >= 0, "random_collect_size", ">= 0", self.random_collect_size)
