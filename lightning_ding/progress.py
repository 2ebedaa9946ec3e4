"""The one set of counters of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Progress:
    """How far a run is. Every count is over all ranks and survives a checkpoint.

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
    """Environment steps taken, warm-up included, resets and evaluation not."""
    episode: int = 0
    """Episodes finished while collecting."""
    sample: int = 0
    """Transitions handed to the learner or the buffer."""

    def state_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Set the counters.

        Raises:
            ValueError: If ``state`` does not hold exactly the counters of this class.
        """
        names = {field.name for field in dataclasses.fields(self)}
        if set(state) != names:
            raise ValueError(f"progress state must hold {sorted(names)}, got {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, int(value))
