"""How many transitions are learned from for each one collected, kept from both sides.

The balance is ``samples_per_insert * inserted - sampled``, in transitions, and those of the warm-up do not count.
Learning waits while the round that it asks for would put the balance more than ``tolerance`` rounds below zero,
collecting while it stands more than ``tolerance`` rounds above. Collecting never waits while learning does, for
whatever reason: so they cannot wait for each other.
"""

from __future__ import annotations


class SampleRatio:
    """Counts what was inserted and sampled, and says who has to wait.

    Args:
        samples_per_insert: Transitions sampled for each one inserted, > 0.
        warm_up: Transitions inserted before the first round, >= 0.
        tolerance: Rounds that one side may be ahead of the other, > 0.
        round_size: Transitions of a round, >= 1; that of the newest round as soon as there was one.

    Example:
        >>> ratio = SampleRatio(samples_per_insert=2.0, warm_up=10, tolerance=1.0, round_size=8)
        >>> ratio.insert(12)
        >>> ratio.may_sample(), ratio.balance  # two of the twelve count
        (True, 4.0)
        >>> ratio.sample(8)
        >>> ratio.may_sample()
        False
    """

    def __init__(self, samples_per_insert: float, warm_up: int, tolerance: float, round_size: int) -> None:
        self.samples_per_insert = samples_per_insert
        self.warm_up = warm_up
        self.tolerance = tolerance
        self.round_size = round_size
        self.inserted = 0
        self.sampled = 0

    @property
    def balance(self) -> float:
        """Transitions that learning is behind, negative if it is ahead."""
        return self.samples_per_insert * max(0, self.inserted - self.warm_up) - self.sampled

    @property
    def so_far(self) -> float:
        """Transitions sampled for each one inserted behind the warm-up; 0 before."""
        counted = self.inserted - self.warm_up
        return self.sampled / counted if counted > 0 else 0.0

    def may_sample(self) -> bool:
        """Return whether the warm-up is over and one more round is not too many."""
        within = self.round_size - self.balance <= self.tolerance * self.round_size
        return self.inserted >= self.warm_up and within

    def may_insert(self, learner_waits: bool) -> bool:
        """Return whether learning is not too far behind, or waits itself.

        Args:
            learner_waits: For data or for newer data, whatever the ratio says.
        """
        return learner_waits or not self.may_sample() or self.balance <= self.tolerance * self.round_size

    def insert(self, amount: int) -> None:
        """Count transitions that were inserted."""
        self.inserted += amount

    def sample(self, amount: int) -> None:
        """Count transitions that were sampled."""
        self.sampled += amount

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take what ``state_dict`` returned."""
        self.inserted, self.sampled = state["inserted"], state["sampled"]
