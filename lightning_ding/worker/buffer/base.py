"""The contract of replay buffers.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.base import Worker
from lightning_ding.worker_config import ReplayBufferConfig

Transitions = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class IBuffer(Worker):
    """Keeps transitions and gives minibatches of them; a context manager."""

    config_class: ClassVar[type[ReplayBufferConfig]] = ReplayBufferConfig
    registry = BUFFER_REGISTRY
    is_prioritised: ClassVar[bool] = False
    """Whether ``update`` takes priorities and minibatches depend on them."""
    gives_sequences: ClassVar[bool] = False
    """Whether samples have an axis of time."""
    budget: int | None = None
    """Env steps of the whole run, for what is scheduled in shares of it; None if it is not known."""

    @abstractmethod
    def push(self, data: Transitions, cur_collector_envstep: int = -1) -> None:
        """Add transitions: a nested dict with leading axis K, a list of K dicts, or one dict, in the order of time."""

    @abstractmethod
    def sample(
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
    ) -> dict[str, Any]:
        """Return a copy of B transitions, or of U times B with ``num_batches``."""

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Take the priorities of transitions that were sampled."""

    @abstractmethod
    def drop_episodes(self, episode_id: Sequence[int]) -> int:
        """Never draw the transitions of these episodes again that are here by now; return how many there were."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all transitions."""

    @abstractmethod
    def count(self) -> int:
        """Return how many transitions are kept."""

    @abstractmethod
    def save_data(self, file: str | Path) -> None:
        """Write the whole state to a file."""

    @abstractmethod
    def load_data(self, file: str | Path) -> None:
        """Take the whole state from a file that ``save_data`` wrote."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as tensors and builtins."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that ``state_dict`` returned."""

    def start(self) -> None:
        """Begin background work, if there is any."""

    def __enter__(self) -> Self:
        self.start()
        return self
