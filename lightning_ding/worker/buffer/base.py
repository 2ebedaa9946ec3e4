"""The interface of replay buffers, and functions that make the buffer that a config section names.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from typing_extensions import Self

from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.config import ReplayBufferConfig

Transitions = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class IBuffer(Worker):
    """Stores transitions and returns minibatches of them; a context manager."""

    config_class: ClassVar[type[ReplayBufferConfig]] = ReplayBufferConfig
    registry = BUFFER_REGISTRY
    is_prioritised: ClassVar[bool] = False
    """Whether ``update`` takes priorities and minibatches depend on them."""
    gives_sequences: ClassVar[bool] = False
    """Whether samples have an axis of time."""
    runs_out: bool = False
    """Whether its transitions may become too few for a minibatch without a push, because of limits on use or age."""
    needs_env: ClassVar[bool] = False
    """Whether :meth:`use_env` must be called before the first draw."""
    budget: int | None = None
    """Env steps of the whole run, for schedules in shares of it; None if it is not known."""
    keeps_double: bool = False
    """Whether observations of double precision are stored as such, and not in single precision."""

    env_step: int = -1
    """Env steps so far, as of the newest push, for schedules and the log; -1 if they are not known."""

    @property
    def padding(self) -> float:
        """Share of the steps of all sequences drawn so far that are padding, in [0, 1); 0 without sequences."""
        return 0.0

    @abstractmethod
    def push(self, data: Transitions, cur_collector_envstep: int = -1) -> None:
        """Add transitions: a nested dict with leading axis K, a list of K dicts, or one dict; in time order."""

    @abstractmethod
    def sample(
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        as_list: bool = False,
    ) -> Any:
        """Return a copy of transitions. A buffer may take further arguments and return further entries.

        Args:
            batch_size: Size of a minibatch B, >= 1.
            cur_learner_iter: Updates so far.
            num_batches: Number of minibatches U drawn at once; None for a single one without the axis U.
            n_step: Steps of each transition's return, >= 1; see docs/training.md for the windows.
            discount_factor: Discount factor gamma of the return.
            as_list: Return a list of dicts, one for each transition, instead of columns.

        Returns:
            A nested dict of tensors, leading axes (B,) or (U, B): the pushed entries and ``discount``. With
            ``as_list``, a list of B dicts of these entries, or a list of U such lists. There an entry that is one
            number for each transition is a Python number, and ``discount`` is left out if ``n_step`` is 1.

        Raises:
            NotEnoughError: If there are too few transitions to draw from; it is a ValueError.
            ValueError: If an argument is out of range.
        """

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of sampled transitions; without ``priority`` nothing happens.

        Raises:
            TypeError: If the buffer stores no priorities and got some.
        """

    def drop_episodes(self, episode_id: Sequence[int]) -> int:
        """Exclude the stored transitions of these episodes from all later draws; return their number.

        Raises:
            NotImplementedError: If the buffer cannot do this.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement drop_episodes to forget episodes with a fault")

    @abstractmethod
    def clear(self) -> None:
        """Remove all transitions."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of stored transitions."""

    @abstractmethod
    def save_data(self, file: str | Path) -> None:
        """Write the whole state to a file."""

    @abstractmethod
    def load_data(self, file: str | Path) -> None:
        """Restore the whole state from a file that ``save_data`` wrote."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as tensors and builtins."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""

    def load_files(self, files: Sequence[Path], seed: np.random.SeedSequence) -> int:
        """Merge the states that several buffers saved into this buffer. The base class loads only the first state.

        Args:
            files: Files that ``save_data`` wrote, at least one.
            seed: Seed of the later draws, because several buffers may begin with the same file.

        Returns:
            The number of files that were loaded.
        """
        self.load_data(files[0])
        return 1

    def next_episode_id(self) -> int:
        """Return an ``episode_id`` above the ids of all stored transitions. The base class returns 0."""
        return 0

    def use_env(self, env: Any) -> None:
        """Take what the draws need of an env, which is not stepped. The base class needs nothing."""

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call. The base class has no metrics."""
        return {}

    def start(self) -> None:
        """Start background work. The base class has none."""

    def __enter__(self) -> Self:
        self.start()
        return self


def check_samples(cfg: Any, in_sequences: bool, priority: bool) -> None:
    """Check that a buffer gives the samples that a policy learns from.

    Args:
        cfg: Config of the buffer.
        in_sequences: Whether the policy learns from sequences.
        priority: Whether the policy computes priorities.

    Raises:
        ValueError: If the buffer gives other samples or stores no priorities, or its config has options for sequences
            that the policy sets.
    """
    found, path = get_buffer_cls(cfg), "other.replay_buffer"
    name = found.registry.name_of(found)
    if found.gives_sequences != in_sequences:
        kind = "sequences, such as 'sequence'" if in_sequences else "transitions, such as 'naive'"
        raise ValueError(f"{path}.type must be one whose samples are {kind}, for this policy, got {name!r}")
    if in_sequences:
        config = found.resolve_config(cfg)
        for key, default in (("sequence_length", None), ("burn_in", 0)):
            given = getattr(config, key, default)
            require(given == default, f"{path}.{key}", f"{default}, because the policy's own options say it", given)
    if priority and not found.is_prioritised:
        raise ValueError(
            f"priority needs a prioritised buffer, but {path}.type is {name!r}, which stores no priorities; use "
            f"{'prioritised_sequence' if in_sequences else 'advanced'!r}"
        )


def create_buffer(cfg: Any, *args: Any, **kwargs: Any) -> IBuffer:
    """Return an instance of :func:`get_buffer_cls`, made with ``cfg`` and the further arguments of its constructor."""
    return get_buffer_cls(cfg)(cfg, *args, **kwargs)  # type: ignore[call-arg]


def get_buffer_cls(cfg: Any) -> type[IBuffer]:
    """Return the class of the buffer that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return cast(type[IBuffer], get_class(BUFFER_REGISTRY, cfg))
