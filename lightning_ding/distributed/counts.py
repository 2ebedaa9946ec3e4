"""What is counted of the data that a buffer gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Sender(NamedTuple):
    """Whose message it is."""

    run_id: str
    slot: int
    run_number: int


@dataclass
class Counts:
    """What a buffer's collectors did."""

    env_step: int = 0
    episode: int = 0
    sample: int = 0
    """Transitions accepted, those too old included."""
    too_old: int = 0
    """Transitions left out because of their age."""
    dropped_episodes: int = 0
    lag_sum: int = 0
    """Updates between collecting and the newest weights, summed over ``sample``."""
    lag_max: int = 0
    newest_version: int = 0
    """Of the weights that the newest data were collected with."""
    accepted: int = 0
    """Number of the newest entry."""
    refused: int = 0
    collector_wait: float = 0.0
    learner_wait: float = 0.0
    next_seq: dict[str, int] = field(default_factory=dict)
    """Of each run that goes on."""
