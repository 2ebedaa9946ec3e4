"""The counters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

COUNTERS = ("train_iter", "env_step", "episode", "sample")
LONG_RUN = 10**12
"""Env steps after which every schedule of exploration has reached its end."""


@dataclass
class Progress:
    """The progress of a run. Every counter covers all ranks and is part of every checkpoint.

    Example:
        >>> progress = Progress()
        >>> progress.env_step += 8
        >>> restored = Progress()
        >>> restored.load_state_dict(progress.state_dict())
        >>> restored.env_step
        8
    """

    train_iter: int = 0
    """Optimisation steps done: one for each minibatch, the same on every rank."""
    env_step: int = 0
    """Env steps made in training, including warm-up; resets do not count."""
    episode: int = 0
    """Episodes finished while collecting."""
    sample: int = 0
    """Transitions passed to the learner or the buffer."""
    data_iter: int = 0
    """Optimisation steps done on a data set, without env steps. It is part of a checkpoint if there were any."""
    budget: int | None = None
    """Env steps of the whole run, the datamodule's ``max_env_step``; None for no limit. This is an argument of the run,
    not a counter, and not part of a checkpoint: a run that is resumed with another budget uses the new one."""
    axis: Literal["env_step", "train_iter"] = "env_step"
    """The counter that schedules, logs and names of checkpoints count by: ``train_iter`` for a run on a data set, which
    makes no env steps. The ``budget`` is in the same unit. Like it, this is an argument of the run."""

    @property
    def position(self) -> int:
        """How far the run is, in the unit of :attr:`axis`."""
        return self.train_iter if self.axis == "train_iter" else self.env_step

    @property
    def has_learned(self) -> bool:
        """Whether the policy has learned, in this run or in one that it continues."""
        return self.env_step > 0 or self.train_iter > 0

    def exploration_step(self, env_step: int) -> int:
        """Return the env step of schedules of exploration: ``env_step``, or past their end after a data set."""
        return LONG_RUN if self.data_iter else env_step

    def state_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        names = (*COUNTERS, "data_iter") if self.data_iter else COUNTERS
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Set the counters.

        Raises:
            ValueError: If ``state`` does not hold exactly the counters of this class.
        """
        if set(state) - {"data_iter"} != set(COUNTERS):
            raise ValueError(f"progress state must hold {sorted(COUNTERS)}, got {sorted(state)}")
        for name, value in {"data_iter": 0, **state}.items():
            setattr(self, name, int(value))
