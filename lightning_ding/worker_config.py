"""The config sections that a policy's config holds for its workers.

They stand below both, so that a policy may set other defaults for them and the workers know nothing of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_ding.config import require


@dataclass(frozen=True)
class CollectorConfig:
    """Keys of a serial collector."""

    type: str = "sample"
    """Registered name of the collector."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, for the collectors that they register."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """Keys of a serial evaluator."""

    type: str = "interaction"
    """Registered name of the evaluator."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, for the evaluators that they register."""
    eval_freq: int = 1000
    """Updates between two evaluations, >= 1; in a Trainer, the length of an epoch."""
    n_episode: int = 10
    """Episodes of one evaluation over all ranks, >= 1."""
    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None for no such end."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.eval_freq >= 1, "eval_freq", ">= 1", self.eval_freq)
        require(self.n_episode >= 1, "n_episode", ">= 1", self.n_episode)


@dataclass(frozen=True)
class ReplayBufferConfig:
    """Keys of a replay buffer."""

    type: str = "naive"
    """Registered name of the buffer."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, for the buffers that they register."""
    replay_buffer_size: int = 10_000
    """Transitions kept on each rank, >= 1; the oldest go first."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.replay_buffer_size >= 1, "replay_buffer_size", ">= 1", self.replay_buffer_size)
