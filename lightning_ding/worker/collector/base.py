"""The interface of the collectors in the learner's process, and functions that make one from a config section."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.vector import VectorEnv

from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker_config import CollectorConfig


class ISerialCollector(Worker):
    """Acts in a vector env with a policy's collect mode; a context manager that closes what it made.

    Its counters cover its own rank. Under several ranks the caller adds them up.
    """

    config_class: ClassVar[type[CollectorConfig]] = CollectorConfig
    registry = SERIAL_COLLECTOR_REGISTRY
    collects_whole_episodes: ClassVar[bool] = False
    """Whether ``collect`` counts episodes, so that a step is returned only if its episode ends without a fault."""
    has_players: ClassVar[bool] = False
    """Whether several policies act in each env."""
    sample: int
    """Transitions that this collector has returned, on this rank."""
    dropped_episode: int = 0
    """Episodes that a fault of their env ended; they are neither counted nor reported as episodes."""

    @abstractmethod
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given."""

    @abstractmethod
    def reset_policy(self, policy: Any = None) -> None:
        """Replace the policy if one is given, and reset its collecting state.

        Args:
            policy: A collect mode; a sequence of them where several policies act in one env.
        """

    @abstractmethod
    def reset(self, policy: Any = None, env: VectorEnv | None = None) -> None:
        """Replace policy and env where they are given, restart both, and set the counters to zero."""

    @abstractmethod
    def collect(self, target: int | None = None, /, *args: Any, **kwargs: Any) -> Any:
        """Return collected data.

        Args:
            target: Amount in the unit of the collector, transitions or episodes; None takes the policy's default.
            args: Further arguments of the collector.
            kwargs: Further arguments of the collector; every collector accepts ``train_iter``, ``random_collect`` and
                ``policy_kwargs``.
        """

    @abstractmethod
    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""

    def pop_dropped_episodes(self) -> list[int]:
        """Return the ``episode_id`` of the episodes that were dropped for a fault of their env since the last call."""
        return []

    def skip_episode_ids(self, first: int) -> None:
        """Give episodes that begin from now on ids >= ``first``, so that they differ from those in a buffer."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state that decides what is collected next, except that of the envs, as tensors and builtins.

        Raises:
            NotImplementedError: If the collector does not support it.
        """
        raise NotImplementedError(f"a {type(self).__name__} does not give its state")

    def load_state_dict(self, state: Mapping[str, Any], goes_on: bool = True) -> None:
        """Restore what ``state_dict`` returned.

        Args:
            state: State of a collector of the same kind with as many envs; of another kind only without ``goes_on``.
            goes_on: Whether the envs are in the state that they had then. If not, the unfinished episodes are left
                out, and ``reset_env`` has to begin new ones.

        Raises:
            NotImplementedError: If the collector does not support it.
        """
        raise NotImplementedError(f"a {type(self).__name__} does not take a state")

    @property
    @abstractmethod
    def episode(self) -> int:
        """Episodes finished by this collector, on this rank."""

    @property
    @abstractmethod
    def envstep(self) -> int:
        """Environment steps taken by this collector, on this rank; a resumed run sets it."""

    @envstep.setter
    @abstractmethod
    def envstep(self, value: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Release what the collector made itself; env, policy and logger stay open."""


def create_serial_collector(cfg: Any, **kwargs: Any) -> ISerialCollector:
    """Return the collector that ``cfg.type`` names, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_serial_collector_cls(cfg)(cfg, **kwargs)  # type: ignore[call-arg]


def get_serial_collector_cls(cfg: Any) -> type[ISerialCollector]:
    """Return the class of the collector that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    found: type[ISerialCollector] = get_class(SERIAL_COLLECTOR_REGISTRY, cfg)
    return found
